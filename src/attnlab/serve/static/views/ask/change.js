// Interventions: switch off heads or replace activations, and compare what the model then says.
import { ApiError, post, stream } from "../../lib/api.js";
import { h } from "../../lib/dom.js";
import { addExports } from "../../lib/report.js";
import { chance, inWords, points, shortName, TAPS } from "./state.js";
import { shown } from "./weights.js";

/** @typedef {import("./state.js").Change} Change */
/**
 * @typedef {object} Subject  what is asked, and of which model
 * @property {{ run: string, text: string, mode: string }} asked
 * @property {string[]} tokens  of the text that was given
 * @property {string[]} partners  texts of as many tokens
 * @property {{ mechanism: string, taps: string[] }[]} layers
 * @property {number} heads
 */
/**
 * @typedef {object} ChangeView
 * @property {HTMLElement} element
 * @property {(subject: Subject | null, changes: Change[]) => void} show
 * @property {(change: Change) => void} toggle  adds a change, or removes it
 * @property {() => void} eachHead  switches off each head in turn
 * @property {() => void} leave
 */

/** @param {string} label @param {[string, string][]} choices @param {(value: string) => void} [act] */
const select = (label, choices, act) => {
  const control = /** @type {HTMLSelectElement} */ (h("select", { onchange: () => act?.(control.value) }, choices.map(([value, name]) => h("option", { value }, name))));
  return { control, label: h("label", {}, h("span", {}, label), control) };
};

/** A line that something is computed, and a button that stops it. @param {() => void} stop */
const progress = (stop) => h("p", { class: "progress" }, "Computing … ", h("button", { type: "button", onclick: stop }, "Stop"));

/** @param {string} name @param {number | null} before @param {number | null} after */
const row = (name, before, after) => {
  const difference = before === null || after === null ? null : after - before;
  return h("tr", {},
    h("th", { scope: "row" }, name),
    h("td", { class: "number" }, chance(before)),
    h("td", { class: "number" }, chance(after)),
    h("td", { class: "difference" }, difference === null ? "–" : points(difference),
      difference !== null && h("span", { class: difference < 0 ? "bar-of less" : "bar-of", style: `--size:${Math.min(1, Math.abs(difference)).toFixed(4)}`, "aria-hidden": "true" })));
};

/**
 * @param {{ changed: (changes: Change[]) => void, mattersMost: (layer: number, head: number, without: number, original: number) => void }} act
 *   told when the list of changes is another, and which head the answer needs most, with its probability without that head
 * @returns {ChangeView}
 */
export const changeView = (act) => {
  /** @type {Subject | null} */
  let subject = null;
  /** @type {Change[]} */
  let changes = [];
  /** @type {AbortController | null} */
  let comparing = null;
  let outdated = false;
  /** @type {Change[]} */
  let accepted = []; // by the server
  let refusal = "";
  let sweeping = new AbortController();
  const form = h("div", { class: "controls" });
  const list = h("ul", { class: "changes", "aria-label": "Changes" });
  const result = h("div", { role: "status", class: "compared" });
  const sweep = h("div", { class: "each-head" });
  const element = h("div", {}, form, list, result, sweep);

  const set = (/** @type {Change[]} */ next) => {
    changes = next;
    refusal = "";
    act.changed(changes);
    showList();
    compare();
  };
  const has = (/** @type {Change[]} */ some, /** @type {Change} */ change) => some.some((one) => same(one, change));
  /** Shows a result, below the reason why a change was taken out again. @param {...(Node | string)} content */
  const show = (...content) => result.replaceChildren(...(refusal ? [h("p", { class: "notice" }, refusal)] : []), ...content);
  const same = (/** @type {Change} */ one, /** @type {Change} */ other) => JSON.stringify(one) === JSON.stringify(other);
  const toggle = (/** @type {Change} */ change) =>
    set(has(changes, change) ? changes.filter((one) => !same(one, change)) : [...changes, change]);

  const showList = () =>
    list.replaceChildren(...changes.map((change) =>
      h("li", {}, h("span", {}, inWords(change, subject?.tokens ?? [])),
        h("button", { type: "button", "aria-label": `Remove: ${inWords(change, subject?.tokens ?? [])}`, onclick: () => toggle(change) }, "×"))));

  // A comparison that is under way is finished before the next one begins: ending it would end the loaded model too.
  const compare = async () => {
    outdated = true;
    if (comparing) return;
    while (outdated) {
      outdated = false;
      if (!subject || !changes.length) {
        show(subject ? h("p", { class: "quiet" }, "No change yet: switch off a head or replace an activation, and the answer is compared with the original.") : "");
        return;
      }
      comparing = new AbortController();
      const { signal } = comparing;
      show(progress(() => comparing?.abort()));
      const { asked } = subject, tried = changes;
      try {
        const found = await post("ask/intervene", { ...asked, changes }, signal);
        accepted = tried;
        if (!outdated) showCompared(found, asked.mode);
      } catch (error) {
        if (!signal.aborted && !(error instanceof ApiError)) throw error;
        const words = signal.aborted ? "Stopped." : /** @type {Error} */ (error).message;
        if (subject.asked === asked && error instanceof ApiError && error.status === 422 && takeOut(tried)) refusal = `Taken out again: ${words}`;
        else show(h("p", { class: "notice" }, words));
      } finally {
        comparing = null;
      }
    }
  };

  /** Takes out the changes that the server refused; whether there were any. @param {Change[]} tried */
  const takeOut = (tried) => {
    const refused = tried.filter((one) => !has(accepted, one));
    changes = changes.filter((one) => !has(refused, one));
    act.changed(changes);
    showList();
    outdated ||= refused.length > 0;
    return refused.length > 0;
  };

  const showCompared = (/** @type {any} */ found, /** @type {string} */ mode) => {
    const what = mode === "ask" ? "Answer" : "Next token";
    const table = h("table", {},
      h("caption", {}, h("span", {}, mode === "ask" ? "The model’s own probabilities, before calibration" : "Probabilities of the next token")),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, what), ["Original", "Changed", "Difference in points"].map((name) => h("th", { scope: "col", class: "number" }, name)))),
      h("tbody", {}, found.rows.map((/** @type {any} */ one) => row(shown(one.answer), one.before, one.after))));
    const other = found.then !== found.answer;
    const box = h("div", {},
      h("p", { class: "lead" }, other ? "The answer changes: " : "The answer stays: ", h("strong", {}, shown(found.answer)), ` ${chance(found.before)} → `,
        h("strong", {}, shown(found.then)), ` ${chance(found.rows.find((/** @type {any} */ one) => one.answer === found.then)?.after)}`),
      h("dl", { class: "pair" },
        h("div", {}, h("dt", {}, "Original writes"), h("dd", {}, found.written_before || "nothing")),
        h("div", {}, h("dt", {}, "Changed writes"), h("dd", {}, found.written_after || "nothing"))),
      h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Alternatives" }, table));
    addExports(box);
    show(box);
  };

  const showForm = () => {
    if (!subject) return form.replaceChildren();
    const { layers, heads, tokens, partners } = subject;
    const layer = select("Layer", layers.map((one, number) => [String(number), `${number + 1} (${shortName(one.mechanism)})`]), () => refresh());
    const tap = select("Activation", [], () => refresh());
    const head = select("Head", [["", "all"], ...Array.from({ length: heads }, (_, number) => /** @type {[string, string]} */ ([String(number), String(number + 1)]))]);
    const place = select("Token", [["", "all"], ...tokens.map((token, number) => /** @type {[string, string]} */ ([String(number), `${number + 1}: ${shown(token)}`]))]);
    const by = select("Replace by", [["zero", "zeros (switch off)"], ["mean", "its mean over this text"], ["text", "that of another text"]], () => refresh());
    const choices = h("datalist", { id: "partners" }, partners.map((text) => h("option", { value: text })));
    const other = /** @type {HTMLInputElement} */ (h("input", { type: "text", list: "partners", value: partners[0] ?? "", maxlength: 4000, size: 34 }));
    const otherLabel = h("label", {}, h("span", {}, `Another text of ${tokens.length} tokens`), other, choices);
    const refresh = () => {
      const known = layers[Number(layer.control.value)].taps;
      const before = tap.control.value;
      tap.control.replaceChildren(...known.map((name) => h("option", { value: name }, TAPS[name])));
      if (known.includes(before)) tap.control.value = before;
      head.label.hidden = tap.control.value !== "z";
      otherLabel.hidden = by.control.value !== "text";
    };
    refresh();
    const number = (/** @type {string} */ value) => (value === "" ? null : Number(value));
    const add = () => toggle({
      layer: Number(layer.control.value), tap: tap.control.value, head: tap.control.value === "z" ? number(head.control.value) : null,
      position: number(place.control.value), by: /** @type {Change["by"]} */ (by.control.value), other: by.control.value === "text" ? other.value : "",
    });
    form.replaceChildren(layer.label, tap.label, head.label, place.label, by.label, otherLabel,
      h("button", { type: "button", class: "primary", onclick: add }, "Change"),
      ...(layers.some((one) => one.taps.includes("z")) ? [h("button", { type: "button", onclick: everyHead }, "Switch off each head in turn")] : []));
  };

  const everyHead = async () => {
    if (!subject) return;
    sweeping.abort();
    sweeping = new AbortController();
    const { signal } = sweeping;
    const { layers, heads, asked } = subject;
    const places = layers.map(() => Array.from({ length: heads }, () => h("td", {}, "…")));
    const start = h("span", {});
    const table = h("table", {},
      h("caption", {}, h("span", {}, "Probability of the answer with one head switched off; difference to the original, ", start, ", in points")),
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Layer"), Array.from({ length: heads }, (_, head) => h("th", { scope: "col" }, `Head ${head + 1}`)))),
      h("tbody", {}, places.map((cells, layer) => h("tr", {}, h("th", { scope: "row" }, layer + 1), cells))));
    const box = h("div", {}, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Heads switched off" }, table));
    sweep.replaceChildren(progress(() => sweeping.abort()), box);
    let original = 0;
    let [least, most] = [Infinity, /** @type {[number, number] | null} */ (null)];
    try {
      await stream("ask/heads", asked, (one) => {
        if (!one) return;
        if (one.layer === null) {
          original = one.probability;
          start.textContent = chance(original);
          return;
        }
        const cell = places[one.layer][one.head];
        if (one.probability === null) return cell.replaceChildren("cannot be switched off");
        const difference = one.probability - original;
        if (one.probability < least) [least, most] = [one.probability, [one.layer, one.head]];
        cell.className = difference < 0 ? "less" : "more";
        cell.style.setProperty("--size", Math.min(1, Math.abs(difference) / Math.max(original, 1e-9)).toFixed(3));
        cell.replaceChildren(h("span", {}, `${chance(one.probability)} (${points(difference)})`));
      }, signal);
      addExports(box);
      sweep.replaceChildren(box);
      if (most) act.mattersMost(...most, least, original);
    } catch (error) {
      if (signal.aborted) return sweep.replaceChildren();
      if (!(error instanceof ApiError)) throw error;
      sweep.replaceChildren(h("p", { class: "notice" }, error.message));
    }
  };

  return {
    element,
    show: (given, wanted) => {
      [subject, changes, accepted, refusal] = [given, wanted, [], ""];
      sweeping.abort();
      sweep.replaceChildren();
      showForm();
      showList();
      compare();
    },
    toggle,
    eachHead: everyHead,
    leave: () => {
      comparing?.abort();
      sweeping.abort();
    },
  };
};
