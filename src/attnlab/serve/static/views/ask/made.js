// How an answer was made: every step from the text to one token, with the numbers of this text.
import { ApiError, post } from "../../lib/api.js";
import { h, svg } from "../../lib/dom.js";
import { termOf } from "../../lib/glossary.js";
import { chance, inWords, weightInWords } from "./state.js";
import { cellsOf, length, number, partsOf, stationsOf, stepsOf, titleOf, wordsOf } from "./steps.js";
import { shown } from "./weights.js";

/** @typedef {import("./steps.js").Trace} Trace */
/** @typedef {import("./steps.js").Step} Step */
/** @typedef {import("./state.js").State} State */
/** @typedef {{ run: string, text: string, mode: string }} Asked */

const PAUSE = 3000; // milliseconds per step when played
const RAISED = "e^(score − largest)";

/** @param {number} value @param {number} [digits] */
const fixed = (value, digits = 2) => value.toFixed(digits).replace("-", "−");

/** A term of the glossary. @param {string} name */
const term = (name) => h("dfn", { "data-term": termOf(name), tabindex: 0 }, name);

/** Guesses with bars; the final one is marked. @param {import("./steps.js").Point} point @param {string} final */
const guesses = (point, final) =>
  h("ol", { class: "guesses" }, point.guesses.map(([token, share]) =>
    h("li", { class: token === final ? "final" : "", style: `--share:${share.toFixed(4)}` }, h("span", {}, shown(token)), h("span", { class: "share" }, chance(share)))));

/**
 * @param {State} state  of the view, which the steps share
 * @param {{ changed: () => void, toggle: (change: import("./state.js").Change) => void, canSwitchOff: (layer: number) => boolean }} act
 */
export const madeView = (state, act) => {
  /** @type {Asked | null} */
  let asked = null;
  /** @type {Trace | null} */
  let trace = null;
  /** @type {Step[]} */
  let steps = [];
  let shownFor = "";
  let busy = false;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let playing;

  const follow = h("select", { onchange: () => {
    state.token = Number(follow.value);
    act.changed();
  } });
  const back = h("button", { type: "button", onclick: () => { stop(); go(state.step - 1); } }, "Back");
  const next = h("button", { type: "button", class: "primary", onclick: () => { stop(); go(state.step + 1); } }, "Next");
  const play = h("button", { type: "button", onclick: () => (playing === undefined ? start() : stop()) }, "Play");
  const where = h("span", { class: "quiet", role: "status" });
  const path = h("ol", { class: "path", "aria-label": "The way through the model" });
  const panel = h("div", { class: "panel" });
  const problem = h("p", { class: "notice", hidden: true });
  const body = h("div", {}, path,
    h("div", { class: "controls" }, h("label", { class: "inline" }, h("span", {}, "Follow"), follow), h("div", { class: "steppers" }, back, play, next), where), panel);
  const element = h("div", { class: "made" }, problem, body);

  const stop = () => {
    clearInterval(playing);
    playing = undefined;
    play.textContent = "Play";
  };
  const start = () => {
    if (state.step >= steps.length - 1) go(0);
    play.textContent = "Pause";
    playing = setInterval(() => (state.step < steps.length - 1 ? go(state.step + 1) : stop()), PAUSE);
  };

  const go = (/** @type {number} */ step) => {
    state.step = Math.max(0, Math.min(steps.length - 1, step));
    const { layer } = steps[state.step];
    if (layer >= 0 && state.layer !== layer + 1) [state.layer, state.head] = [layer + 1, Math.max(1, state.head)];
    act.changed();
  };

  /** The head that is shown, from 1: the chosen one, if the layer has it. @param {Step} step */
  const headOf = ({ layer }) => Math.max(1, Math.min(state.head, trace?.layers[layer]?.weights.length ?? 1));

  /** What that head computes. @param {Step} step */
  const headIn = (step) => {
    const { weights, products, queries, rows, keys, values, outputs } = /** @type {Trace} */ (trace).layers[step.layer];
    const at = headOf(step) - 1;
    return { weights: weights[at], products: products[at], query: queries[at], rows: rows[at], keys: keys[at], values: values[at], output: outputs[at] };
  };

  // Parts of the panel

  const tip = h("p", { class: "tip quiet" });
  /** @param {string} name @param {number[]} values @param {number} [peak] */
  const strip = (name, values, peak = Math.max(...values.map(Math.abs), 1e-9)) => {
    const size = values.length;
    const say = (/** @type {PointerEvent} */ event) => {
      const box = drawing.getBoundingClientRect();
      const place = Math.max(0, Math.min(size - 1, Math.floor(((event.clientX - box.left) / box.width) * size)));
      tip.textContent = `${name}, channel ${place + 1} of ${size}: ${number(values[place])}`;
    };
    const drawing = svg("svg", { class: "vector", viewBox: `0 0 ${size} 1`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}: ${size} numbers of length ${number(length(values))}`, onpointermove: say, onpointerdown: say },
      cellsOf(values, peak).map(({ opacity, negative, path: cells }) => svg("path", { class: negative ? "cell negative" : "cell", "fill-opacity": opacity.toFixed(3), d: cells, "shape-rendering": "crispEdges" })));
    return drawing;
  };

  /** Rows of one or more vectors of the stream, drawn on one scale. @param {[string, number[]][]} rows */
  const vectors = (rows) =>
    h("table", { class: "vectors" }, h("thead", {}, h("tr", {}, ["", "Vector", "Length"].map((name) => (name ? h("th", { scope: "col" }, name) : h("td", {}))))),
      h("tbody", {}, rows.map(([name, values]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, strip(name, values)), h("td", { class: "number" }, number(length(values)))))));

  /** The numbers of a vector, for those who want all. @param {string} name @param {number[]} values */
  const numbers = (name, values) => h("details", {}, h("summary", {}, `${name} in numbers`), h("p", { class: "digits" }, values.map(number).join("  ")));

  /** The text, shaded by weights; a token is followed by a click. @param {number[] | null} weights */
  const words = (weights) => {
    const made = /** @type {Trace} */ (trace);
    const most = Math.max(...(weights ?? []).map(Math.abs), 0.3);
    return h("p", { class: "text", "aria-label": "The text" }, made.tokens.map((token, place) =>
      h("span", {
        class: `part${place === made.token ? " followed" : ""}${place >= made.given ? " written" : ""}${(weights?.[place] ?? 0) < 0 ? " negative" : ""}`, "data-place": place,
        style: `--share:${(Math.abs(weights?.[place] ?? 0) / most).toFixed(3)}`, title: weights ? weightInWords(weights[place] ?? 0) : `token ${place + 1}, number ${made.ids[place]}`,
        onclick: () => { state.token = place; act.changed(); },
      }, shown(token))));
  };

  /** What heads look at most, to choose one. @param {Step} step */
  const heads = (step) => {
    const made = /** @type {Trace} */ (trace);
    return h("div", { class: "choose", role: "group", "aria-label": "Heads of this layer" }, made.layers[step.layer].weights.map((weights, place) => {
      const best = weights.reduce((most, weight, token) => (Math.abs(weight) > Math.abs(weights[most]) ? token : most), 0);
      return h("button", { type: "button", "aria-pressed": String(place + 1 === headOf(step)), onclick: () => { state.head = place + 1; act.changed(); } },
        `Head ${place + 1}`, h("span", {}, `“${shown(made.tokens[best])}” ${weightInWords(weights[best], 0)}`));
    }), act.canSwitchOff(step.layer) && switchOff(step));
  };

  /** @param {Step} step */
  const switchOff = (step) => {
    const change = { layer: step.layer, tap: "z", head: headOf(step) - 1, position: null, by: /** @type {const} */ ("zero"), other: "" };
    const off = state.changes.some((one) => JSON.stringify(one) === JSON.stringify(change));
    return h("button", { type: "button", class: "off", onclick: () => act.toggle(change) }, `Switch ${off ? "on" : "off"} head ${headOf(step)}`);
  };

  /** One row per token: key, score, weight and value, as far as a step has come. @param {Step} step */
  const comparison = (step) => {
    const { kind, layer } = step;
    const made = /** @type {Trace} */ (trace);
    const head = headIn(step);
    const scored = head.products.length > 0;
    const peak = (/** @type {number[][]} */ rows) => Math.max(...rows.flat().map(Math.abs), 1e-9);
    const most = Math.max(...head.weights.map(Math.abs), 1e-9);
    const columns = { keys: ["Key", ...(scored ? ["Score"] : [])], weights: [...(scored ? ["Score"] : []), ...(made.layers[layer].softmax ? [RAISED] : []), "Weight"], values: ["Weight", "Value"], influence: ["Share"] }[/** @type {string} */ (kind)] ?? [];
    const [keys, values] = [peak(head.keys), peak(head.values)];
    const cell = (/** @type {string} */ column, /** @type {number} */ row, /** @type {number} */ token) => {
      const name = `“${shown(made.tokens[token])}”`;
      if (column === "Key") return h("td", {}, strip(`Key of ${name}`, head.keys[row], keys));
      if (column === "Value") return h("td", { style: `--faint:${(0.25 + 0.75 * Math.min(1, Math.abs(head.weights[token]) / most)).toFixed(2)}` }, strip(`Value of ${name}`, head.values[row], values));
      if (column === "Score") return h("td", { class: "number" }, fixed(head.products[token]));
      if (column === RAISED) return h("td", { class: "number" }, fixed(Math.exp(head.products[token] - best), 3));
      return h("td", { class: "weight", style: `--share:${(Math.abs(head.weights[token]) / most).toFixed(4)}` }, weightInWords(head.weights[token]));
    };
    const seen = made.token + 1;
    const others = seen - head.rows.length;
    const best = Math.max(...head.products);
    const total = head.weights.slice(0, seen).reduce((sum, weight) => sum + weight, 0);
    return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Tokens that this head compares" },
      h("table", { class: "compared-tokens" },
        h("caption", {}, h("span", {}, others > 0 ? `The ${head.rows.length} tokens with the largest weights, of ${seen}` : `Tokens up to “${shown(made.tokens[made.token])}”`)),
        h("thead", {}, h("tr", {}, ["Token", ...columns].map((name) => h("th", { scope: "col", class: name === "Score" || name === RAISED ? "number" : "" }, name)))),
        kind === "keys" && h("tbody", {}, h("tr", {}, h("th", { scope: "row" }, "Query"), h("td", {}, strip(`Query of “${shown(made.tokens[made.token])}”`, head.query)), scored && h("td", {}))),
        h("tbody", {}, head.rows.map((token, row) => h("tr", { "data-place": token, class: token === made.token ? "followed" : "" }, h("th", { scope: "row" }, shown(made.tokens[token])), columns.map((column) => cell(column, row, token))))),
        kind === "values" ? h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "Output"), h("td", {}, `sum ${weightInWords(total)}`), h("td", {}, strip(`Output of head ${headOf(step)}`, head.output))))
          : kind === "weights" && h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "Sum"), columns.slice(1).map((column) => h("td", { class: "number" }, column === "Weight" && columns.includes(RAISED) ? fixed(head.products.reduce((sum, score) => sum + Math.exp(score - best), 0), 3) : "")), h("td", {}, weightInWords(total))))));
  };

  /** What a point predicts, and what it would have before. @param {Step} step */
  const lens = ({ point }) => {
    const { points } = /** @type {Trace} */ (trace);
    const final = points[points.length - 1].guesses[0][0];
    return h("figure", { class: "lens" }, h("figcaption", {}, "If the model ended here"), guesses(points[point], final),
      point > 0 && h("p", { class: "quiet" }, `“${shown(final)}”, its final prediction: ${chance(points[point - 1].final)} before this step, ${chance(points[point].final)} after it.`));
  };

  /** @param {Step} step @returns {(Node | string | false)[]} */
  const content = (step) => {
    const made = /** @type {Trace} */ (trace);
    const { kind, layer: place, point } = step;
    const layer = made.layers[place];
    const name = `“${shown(made.tokens[made.token])}”`;
    if (kind === "tokens") return [h("ol", { class: "chips" }, made.tokens.map((token, each) => h("li", { class: each === made.token ? "followed" : "" }, h("span", {}, shown(token)), h("span", { class: "quiet" }, made.ids[each]))))];
    if (kind === "embedding") {
      const first = made.token + 1 - made.embeddings.length;
      const rows = made.embeddings.map((values, row) => /** @type {[string, number[]]} */ ([shown(made.tokens[first + row]), values]));
      return [vectors([...rows, ...(made.position.length ? [/** @type {[string, number[]]} */ (["position", made.position])] : [])]), lens(step), numbers(`Stream of ${name}`, made.points[0].values)];
    }
    if (kind === "attention" || kind === "mlp") {
      const adds = kind === "mlp" ? layer.mlp : layer.attention;
      const rows = /** @type {[string, number[]][]} */ ([["Stream before", made.points[point - 1].values], ...(kind === "mlp" ? [["Hidden units", layer.hidden]] : []), [kind === "mlp" ? "MLP adds" : "Attention adds", adds], ["Stream after", made.points[point].values]]);
      return [vectors(rows), lens(step), numbers("Stream after", made.points[point].values)];
    }
    if (kind === "prediction") return prediction(made);
    const head = headIn(step);
    return [words(head.weights), kind !== "influence" && heads(step), comparison(step), kind === "keys" && numbers("Query", head.query), kind === "values" && numbers("Output", head.output)];
  };

  /** @param {Trace} made */
  const prediction = (made) => {
    const last = made.points[made.points.length - 1];
    const [final] = last.guesses[0];
    return [
      h("table", { class: "logits" }, h("caption", {}, h("span", {}, `The likeliest tokens after “${shown(made.tokens[made.token])}”`)),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Token"), h("th", { scope: "col", class: "number" }, "Logit"), h("th", { scope: "col" }, "Probability"))),
        h("tbody", {}, last.guesses.map(([token, share], row) => h("tr", {}, h("th", { scope: "row" }, shown(token)), h("td", { class: "number" }, number(made.scores[row])), h("td", { class: "weight", style: `--share:${share.toFixed(4)}` }, chance(share)))))),
      h("table", { class: "lens-table" }, h("caption", {}, h("span", {}, "The prediction after every step")),
        h("thead", {}, h("tr", {}, ["After", "Likeliest", `Probability of “${shown(final)}”`].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, stationsOf(steps).slice(1, -1).map(({ name, point }) => {
          const at = made.points[point ?? 0];
          return h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, `${shown(at.guesses[0][0])} ${chance(at.guesses[0][1])}`), h("td", { class: "weight", style: `--share:${at.final.toFixed(4)}` }, chance(at.final)));
        }))),
    ];
  };

  // The whole

  const draw = () => {
    if (!trace) return;
    const made = trace;
    state.step = Math.max(0, Math.min(steps.length - 1, state.step));
    const { kind, layer } = steps[state.step];
    // Another layer was chosen elsewhere on the page: the same step of that one.
    if (layer >= 0 && made.layers[state.layer - 1] && state.layer !== layer + 1) state.step = steps.findIndex((one) => one.layer === state.layer - 1 && (one.kind === kind || !["mlp", "attention"].includes(kind)));
    const step = steps[state.step];
    const stations = stationsOf(steps);
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const [inPath, label] = [path.contains(focused), focused?.textContent ?? ""];
    path.replaceChildren(...stations.map(({ name, first, last, point }) => {
      const here = state.step >= first && state.step <= last;
      const guess = point === null ? null : made.points[point].guesses[0];
      return h("li", { class: `${/^(Attention|MLP)/.exec(name)?.[0].toLowerCase() ?? ""}${here ? " here" : ""}` },
        h("button", { type: "button", "aria-current": here ? "step" : null, onclick: () => { stop(); go(first); } }, name,
          guess ? h("span", { class: "guess", style: `--share:${guess[1].toFixed(3)}` }, `${shown(guess[0])} ${weightInWords(guess[1], 0)}`) : h("span", { class: "guess" }, `${made.tokens.length} pieces`)));
    }));
    const after = (/** @type {number} */ place) => (made.tokens[place + 1] === undefined ? "end" : shown(made.tokens[place + 1]));
    follow.replaceChildren(...[true, false].map((late) =>
      h("optgroup", { label: late ? "How it chose" : "Tokens that it read" }, made.tokens.flatMap((token, place) =>
        (place + 1 >= made.given) === late ? [h("option", { value: place }, late ? `“${after(place)}”, after “${shown(token)}”` : `${place + 1}: ${shown(token)}`)] : []))));
    follow.value = String(made.token);
    [back.disabled, next.disabled] = [state.step === 0, state.step === steps.length - 1];
    where.textContent = `Step ${state.step + 1} of ${steps.length}`;
    tip.textContent = "Point at a coloured strip to read its numbers. Blue is above zero, orange below.";
    const changed = state.changes.some((one) => one.layer === step.layer && one.tap === "z");
    panel.replaceChildren(
      h("h3", {}, titleOf(step, headOf(step))),
      h("p", { class: "explained" }, partsOf(wordsOf(made, step, changed)).map(({ text, term: is }) => (is ? term(text) : text))),
      state.changes.length ? h("p", { class: "quiet" }, `As the changed model computes it: ${state.changes.map((change) => inWords(change, made.tokens)).join("; ")}.`) : "",
      ...content(step).filter((part) => part !== false), ["tokens", "prediction", "influence", "weights"].includes(step.kind) ? "" : tip);
    if (focused && !element.contains(document.activeElement)) {
      const same = [...(inPath ? path : panel).querySelectorAll("button")].find((button) => button.textContent === label || (inPath && button.getAttribute("aria-current")));
      same?.focus({ preventScroll: true });
    }
  };

  const link = (/** @type {Event} */ event) => {
    const place = /** @type {Element} */ (event.target).closest?.("[data-place]")?.getAttribute("data-place");
    panel.querySelectorAll("[data-place]").forEach((one) => one.classList.toggle("pointed", place !== null && place === one.getAttribute("data-place")));
  };
  panel.addEventListener("pointerover", link);
  panel.addEventListener("pointerleave", link);

  /** Asks for the steps of what is followed now; a request under way is finished first: ending it would end the loaded model too. */
  const load = async () => {
    if (busy || !asked) return;
    busy = true;
    let wanted = "";
    try {
      while (asked && wanted !== (wanted = JSON.stringify([asked, state.token, state.changes]))) {
        try {
          trace = await post("ask/steps", { ...asked, token: state.token, changes: state.changes });
          steps = stepsOf(/** @type {Trace} */ (trace));
          [shownFor, problem.hidden] = [wanted, true];
        } catch (error) {
          if (!(error instanceof ApiError)) throw error;
          [problem.textContent, problem.hidden] = [error.message, false];
          trace = null;
        }
      }
    } finally {
      busy = false;
    }
    body.hidden = !trace;
    draw();
  };

  return {
    element,
    /** Shows another text. @param {Asked} given */
    show: (given) => {
      stop();
      asked = given;
      load();
    },
    /** Shows what the state says now. */
    update: () => (JSON.stringify([asked, state.token, state.changes]) === shownFor ? draw() : load()),
    leave: stop,
  };
};
