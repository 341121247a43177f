// Ask a run, look at the attention behind what it writes, and change what it computes.
import { readState, writeState } from "../lib/address.js";
import { ApiError, get, post, stream } from "../lib/api.js";
import { firstRun } from "../lib/command.js";
import { h } from "../lib/dom.js";
import { addExports, chartExports } from "../lib/report.js";
import { verdictView, writing } from "./ask/answer.js";
import { changeView } from "./ask/change.js";
import { headGrid, largeMap } from "./ask/heads.js";
import { madeView } from "./ask/made.js";
import { chance, parse, serialise, shortName, weightInWords } from "./ask/state.js";
import { textView } from "./ask/text.js";
import { asLook, isInfluence, mapOf, nameOf, shown, strongest, weightsAt, within } from "./ask/weights.js";

export const title = "Ask";

const SEPARATOR = "⁇";
const EXAMPLES = { ask: "Where was Hank Aaron born?", continue: "Hank Aaron was born in" }; // where the run has none

/** @typedef {{ name: string, what: string, mechanism: string | null, asks: boolean, code: boolean, example: boolean }} Run */

/** @param {HTMLElement} root @param {string[]} _ @param {AbortSignal} left */
export const mount = async (root, _, left) => {
  const state = parse(readState());
  /** @type {any} */
  let about = null;
  /** @type {import("./ask/answer.js").Step[]} */
  let steps = [];
  /** @type {string[]} */
  let given = [];
  /** @type {import("./ask/weights.js").Look | null} */
  let look = null;
  let work = new AbortController();
  const remember = () => writeState(serialise(state), left);
  /** Shows what was chosen, everywhere. */
  const settle = () => {
    drawAttention();
    made.update();
    remember();
  };

  // The controls

  const runs = h("select", { id: "run", onchange: () => choose(runs.value, true) });
  const modes = h("select", { onchange: () => showExamples() }, h("option", { value: "ask" }, "Ask a question"), h("option", { value: "continue" }, "Continue a text"));
  const text = /** @type {HTMLInputElement} */ (h("input", { type: "text", maxlength: 4000, autocomplete: "off", spellcheck: "false" }));
  const go = h("button", { type: "submit", class: "primary" }, "Ask");
  const stop = h("button", { type: "button", disabled: true, onclick: () => work.abort() }, "Stop");
  const form = h("form", { class: "controls asking", onsubmit: (/** @type {Event} */ event) => {
    event.preventDefault();
    Object.assign(state, { mode: modes.value, text: text.value, token: null, changes: [] });
    ask();
  } },
    h("label", {}, h("span", {}, "Run"), runs), h("label", {}, h("span", {}, "What to do"), modes),
    h("label", { class: "wide" }, h("span", {}, "Text"), text), go, stop);
  const info = h("div", { class: "quiet info", role: "status" });
  const own = h("div", { class: "quiet own" });
  const examples = h("div", { class: "examples" });
  const failure = h("p", { class: "notice", role: "alert", hidden: true });
  const status = h("p", { class: "progress", role: "status" });
  const fail = (/** @type {string} */ message) => {
    failure.textContent = message;
    failure.hidden = !message;
  };
  const answer = h("section", { "aria-label": "Answer", hidden: true });
  const way = h("section", { "aria-labelledby": "made", hidden: true });
  const inside = h("section", { "aria-labelledby": "attention", hidden: true });
  const change = h("section", { "aria-labelledby": "interventions", hidden: true });
  root.append(h("h1", {}, title), own, form, info, examples, failure, status, answer, way, inside, change);

  // The answer

  const written = h("div", { class: "written" });
  const plain = h("p", { class: "continued", hidden: true }); // what it wrote after a text
  const verdict = h("div", {});
  answer.append(written, plain, verdict);

  const showWriting = (/** @type {boolean} */ finished) =>
    written.replaceChildren(h("p", { class: "quiet" }, state.mode === "ask" ? "The model writes" : "The model continues"), writing(steps, finished));

  // Attention

  const readout = h("p", { class: "readout", role: "status" });
  const strip = textView({
    lock: (token) => {
      state.token = state.token === token ? null : token;
      settle();
    },
    say: (token, weights) => {
      if (!look) return;
      const influence = isInfluence(look, state);
      const verb = state.incoming ? (influence ? "influences" : "is looked at by") : influence ? "depends on" : "looks at";
      const most = strongest(weights, 4).map(({ place, weight }) => `“${shown(look?.tokens[place] ?? "")}” ${weightInWords(weight)}`);
      // It was not trained to predict questions, nor the symbol that ends them.
      const untrained = (state.mode === "ask" && token < given.length) || look.tokens[token] === SEPARATOR;
      const [probability, expected] = (!untrained && look.read[token]) || [null, null];
      const met = probability === null || expected === null ? "" : ` The model gave it ${chance(probability)}${expected === look.tokens[token] ? "" : `; likeliest was “${shown(expected)}”`}.`;
      readout.replaceChildren(h("strong", {}, `“${shown(look.tokens[token])}”`), ` ${verb} ${most.join(", ")}.`, h("span", { class: "quiet" }, met));
    },
  });
  const grid = h("div", {});
  const large = h("div", {});
  const follow = h("div", { class: "follow" });
  const notice = h("p", { class: "notice" });
  const outgoing = h("option", { value: "out" });
  const incoming = h("option", { value: "in" });
  const direction = h("select", { onchange: () => {
    state.incoming = direction.value === "in";
    settle();
  } }, outgoing, incoming);
  const separated = h("p", { class: "quiet separated" }, `${SEPARATOR} separates the question from the answer.`);
  const off = h("button", { type: "button", onclick: () => interventions.toggle({ layer: state.layer - 1, tap: "z", head: headChosen() ? headChosen() - 1 : null, position: null, by: "zero", other: "" }) });
  /** The head that can be switched off, from 1; 0 is all of the layer. */
  const headChosen = () => (look && isInfluence(look, state) ? 0 : state.head);
  const headName = h("h3", {});
  const attention = h("div", {}, notice, grid,
    h("div", { class: "chosen" }, headName, h("label", { class: "inline" }, h("span", {}, "Show"), direction), off),
    strip.element, chartExports(strip.drawing, "Text with arcs", strip.drawAll), separated, readout, h("div", { class: "split" }, large, follow));
  const refused = h("p", { class: "notice" });
  inside.append(h("h2", { id: "attention" }, "Attention"), refused, attention);

  /** The token at which the model chose a step. @param {number} step */
  const asker = (step) => given.length + step - 1;

  const showFollow = () => {
    if (!look || !steps.length) return follow.replaceChildren();
    const map = mapOf(look, state);
    const current = steps.findIndex((_, step) => asker(step) === state.token);
    const move = (/** @type {number} */ step) => {
      state.token = asker(Math.max(0, Math.min(steps.length - 1, step)));
      settle();
    };
    const size = look.tokens.length;
    const tokens = look.tokens;
    const scrolled = follow.querySelector(".scroll")?.scrollTop ?? 0;
    follow.replaceChildren(
      h("h3", {}, "Follow it through generation"),
      h("div", { class: "controls" },
        h("button", { type: "button", disabled: current === 0, onclick: () => move(current < 0 ? 0 : current - 1) }, "Previous step"),
        h("button", { type: "button", disabled: current === steps.length - 1, onclick: () => move(current + 1) }, "Next step"),
        h("span", { class: "quiet" }, current < 0 ? "Choose a step" : `Step ${current + 1} of ${steps.length}`)),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Steps of generation" }, h("table", {},
        h("caption", {}, h("span", {}, `${nameOf(look, state)}, as each token was chosen`)),
        h("thead", {}, h("tr", {}, ["Token", "Probability", "Most weight on"].map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, steps.map((step, number) => h("tr", { class: number === current ? "current" : "" },
          h("th", { scope: "row" }, h("button", { type: "button", class: "step", "aria-pressed": String(number === current), onclick: () => move(number) }, step.stop ? "end" : shown(step.token))),
          h("td", {}, chance(step.probability)),
          h("td", {}, strongest(weightsAt(map, size, asker(number)), 3).map(({ place, weight }) => `${shown(tokens[place])} ${weightInWords(weight, 0)}`).join(", "))))))));
    addExports(follow);
    const box = /** @type {HTMLElement} */ (follow.querySelector(".scroll"));
    const row = /** @type {HTMLElement | null} */ (follow.querySelector("tr.current"));
    const wanted = row ? Math.min(Math.max(scrolled, row.offsetTop + row.offsetHeight - box.clientHeight), row.offsetTop - 40) : scrolled;
    box.scrollTop = Math.max(0, wanted);
  };

  const drawAttention = () => {
    if (!look) return;
    Object.assign(state, within(look, state));
    const choice = { layer: state.layer, head: state.head };
    const removed = new Set(state.changes.filter((one) => one.tap === "z" && one.by === "zero" && one.position === null).map((one) => `${one.layer + 1}.${(one.head ?? -1) + 1}`));
    grid.replaceChildren(headGrid(look, choice, removed, (next) => {
      Object.assign(state, next);
      settle();
      /** @type {HTMLElement | null} */ (grid.querySelector("[aria-pressed=true]"))?.focus({ preventScroll: true });
    }));
    const influence = look.layers.flatMap((layer, number) => (layer.kind === "influence" ? [number + 1] : []));
    notice.hidden = !influence.length;
    notice.textContent = `${influence.length > 1 ? "Layers" : "Layer"} ${influence.join(", ")}: no attention weights over tokens. Influence is shown instead: how much the output at a token changes with each input, by gradient, as shares of a row.`;
    headName.textContent = nameOf(look, choice);
    const single = state.layer > 0 && about?.layers[state.layer - 1]?.taps.includes("z");
    off.hidden = !single;
    const word = removed.has(`${state.layer}.${headChosen()}`) ? "Switch on" : "Switch off";
    off.textContent = `${word} ${headChosen() ? `head ${headChosen()}` : "all heads"} of layer ${state.layer}`;
    if (most) press.textContent = `${removed.has(`${most.layer + 1}.${most.head + 1}`) ? "Switch on" : "Switch off"} head ${most.head + 1} of layer ${most.layer + 1}`;
    const current = steps.findIndex((_, step) => asker(step) === state.token);
    const produced = current < 0 || steps[current].stop ? null : asker(current) + 1;
    outgoing.textContent = isInfluence(look, choice) ? "what the token depends on" : "what the token looks at";
    incoming.textContent = isInfluence(look, choice) ? "what depends on the token" : "what looks at the token";
    direction.value = state.incoming ? "in" : "out";
    strip.draw(mapOf(look, choice), { locked: state.token, incoming: state.incoming, influence: isInfluence(look, choice), produced });
    const figure = largeMap(look, choice, state.token, (token) => {
      state.token = state.token === token ? null : token;
      settle();
    });
    large.replaceChildren(figure);
    addExports(large);
    showFollow();
  };

  const showLook = (/** @type {any} */ sent) => {
    inside.hidden = false;
    refused.hidden = !sent.refused;
    attention.hidden = Boolean(sent.refused);
    refused.textContent = sent.refused ?? "";
    if (sent.refused) return;
    look = asLook(sent);
    separated.hidden = state.mode !== "ask" || given.at(-1) !== SEPARATOR;
    strip.show(look.tokens, look.tokens.length - given.length);
    if (state.token === null || state.token >= look.tokens.length) state.token = given.length - 1;
    drawAttention();
  };

  // The way through the model, and interventions

  const made = madeView(state, {
    changed: settle,
    toggle: (change) => interventions.toggle(change),
    canSwitchOff: (layer) => about?.layers[layer].taps.includes("z"),
  });
  /** @type {{ layer: number, head: number } | null} the head that the answer needs most, if it is known */
  let most = null;
  const press = h("button", { type: "button", onclick: () => most && interventions.toggle({ layer: most.layer, tap: "z", head: most.head, position: null, by: "zero", other: "" }) });
  const needed = h("p", { class: "needed", role: "status" });
  way.append(h("h2", { id: "made" }, "How this answer was made"), needed, made.element);
  const interventions = changeView({
    changed: (changes) => {
      state.changes = changes;
      settle();
    },
    mattersMost: (layer, head, without, original) => {
      Object.assign(state, { layer: layer + 1, head: head + 1 });
      most = { layer, head };
      needed.replaceChildren("It needs ", h("strong", {}, `layer ${layer + 1}, head ${head + 1}`), ` most: without it, the probability of the answer is ${chance(without)} instead of ${chance(original)}.`,
        press);
      settle();
    },
  });
  change.append(h("h2", { id: "interventions" }, "Change what it computes"), interventions.element);

  // Asking

  const ask = async () => {
    work.abort();
    work = new AbortController();
    const { signal } = work;
    remember();
    look = null;
    steps = [];
    let said = "";
    /** @type {string[]} */
    let partners = [];
    [answer, way, inside, change].forEach((section) => (section.hidden = true));
    verdict.replaceChildren();
    most = null;
    needed.replaceChildren();
    plain.hidden = true;
    fail("");
    status.textContent = "Computing …";
    go.disabled = true;
    stop.disabled = false;
    const asked = { run: state.run, text: state.text, mode: state.mode };
    try {
      await stream("ask/answer", asked, (line) => {
        if (line?.kind === "prompt") {
          given = line.tokens;
          partners = line.partners;
          answer.hidden = false;
          showWriting(false);
          if (line.note) written.append(h("p", { class: "notice" }, line.note));
        } else if (line?.kind === "token") {
          steps.push(line);
          showWriting(false);
        } else if (line?.kind === "written") {
          said = line.text;
          showWriting(true);
          plain.hidden = state.mode === "ask" || !said;
          plain.replaceChildren("It writes: ", h("strong", {}, said));
        } else if (line?.kind === "answer") {
          verdict.replaceChildren(verdictView(line, said, state.risk, (risk) => {
            state.risk = risk;
            remember();
          }));
        } else if (line?.kind === "look") showLook(line);
      }, signal);
      status.textContent = "";
      way.hidden = change.hidden = false;
      made.show(asked);
      interventions.show({ asked, tokens: given, partners, layers: about.layers, heads: about.heads }, state.changes);
      remember();
    } catch (error) {
      status.textContent = "";
      if (signal.aborted) {
        if (work.signal === signal) status.textContent = "Stopped.";
        return;
      }
      if (!(error instanceof ApiError)) throw error;
      fail(error.message);
    } finally {
      if (work.signal === signal) {
        go.disabled = false;
        stop.disabled = true;
        if (!steps.length) answer.hidden = true;
      }
    }
  };

  const showExamples = () => {
    const mode = modes.value === "ask" ? "ask" : "continue";
    const found = mode === "ask" ? about?.questions : about?.texts;
    go.textContent = mode === "ask" ? "Ask" : "Continue";
    text.placeholder = found?.[0] ?? `such as: ${EXAMPLES[mode]}`;
    examples.replaceChildren(...(found ?? []).map((/** @type {string} */ example) =>
      h("button", { type: "button", onclick: () => {
        text.value = example;
        form.requestSubmit();
      } }, example)));
  };

  /** @param {string} name @param {boolean} another */
  const choose = async (name, another) => {
    state.run = name;
    if (another) Object.assign(state, { mode: modes.value, text: "", token: null, changes: [], layer: 1, head: 1 });
    work.abort();
    work = new AbortController();
    const { signal } = work;
    [answer, way, inside, change].forEach((section) => (section.hidden = true));
    about = null;
    modes.value = state.mode;
    if (!another) text.value = state.text;
    info.textContent = "Opening the run …";
    stop.disabled = false;
    go.disabled = true;
    status.textContent = "";
    fail("");
    showExamples();
    remember();
    try {
      about = await post("ask/open", { run: name }, signal);
    } catch (error) {
      info.textContent = signal.aborted ? (work.signal === signal ? "Stopped." : info.textContent) : "";
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      fail(error.message);
      return;
    } finally {
      if (work.signal === signal) [stop.disabled, go.disabled] = [true, false];
    }
    const layers = about.layers.length;
    const mechanisms = [...new Set(about.layers.map((/** @type {any} */ one) => shortName(one.mechanism)))].join(", ");
    info.textContent = `${layers} layer${layers === 1 ? "" : "s"} of ${about.heads} head${about.heads === 1 ? "" : "s"} (${mechanisms}), ${about.parameters.toLocaleString("en")} parameters, trained on up to ${about.block} tokens${about.asks ? (about.calibrated ? ", calibrated" : ", not calibrated") : ""}.`;
    if (!about.asks) state.mode = "continue";
    modes.value = state.mode;
    /** @type {HTMLOptionElement} */ (modes.options[0]).disabled = !about.asks;
    showExamples();
    remember();
    // The example shows what there is to see: a question is asked, and the head that the answer needs most is selected.
    const untouched = !another && known.some((run) => run.example && run.name === name) && !location.search.includes("q=");
    if (untouched) [text.value] = [state.text] = about.questions;
    if (state.text.trim()) await ask();
    if (untouched && look && !work.signal.aborted) interventions.eachHead();
  };

  const leave = () => {
    work.abort();
    made.leave();
    interventions.leave();
    strip.leave();
  };
  /** @type {{ root: string, runs: Run[] }} */
  const { root: folder, runs: known } = await get("ask/runs", left);
  runs.replaceChildren(...known.map((run) => h("option", { value: run.name }, `${run.name} (${run.example ? "comes with attnlab" : run.what}, ${run.mechanism ? shortName(run.mechanism) : "unknown mechanism"}${run.code ? ", own code" : ""})`)));
  if (!known[0] || known[0].example) own.replaceChildren(`There is no run of your own with a model in ${folder} yet${known[0] ? "; this example comes with attnlab" : ""}. This command trains one:`, firstRun(folder));
  form.hidden = !known[0];
  if (!known[0]) return leave;
  const wanted = state.run && !known.some((run) => run.name === state.run);
  if (wanted) {
    runs.prepend(h("option", { value: state.run }, state.run));
  }
  runs.value = state.run || known[0].name;
  choose(runs.value, false);
  return leave;
};
