// The catalogue of mechanisms, the page of one of them, and the audit of a pasted class.
import { IS_STATIC, here, readState, writeState } from "../lib/address.js";
import { ApiError, get, post } from "../lib/api.js";
import { needsServer } from "../lib/command.js";
import { fragment, h } from "../lib/dom.js";
import { gloss } from "../lib/glossary.js";
import { showReport } from "../lib/report.js";

export const title = "Mechanisms";

/**
 * @typedef {object} Mechanism
 * @property {string} name
 * @property {string} summary
 * @property {string} cost
 * @property {string} weights
 * @property {boolean} causal
 * @property {string} defect
 * @property {string} paper
 * @property {string} link
 * @property {string} source
 * @property {string} cells  SVG of a pattern, drawn by the server
 * @property {number} size
 * @property {string} pattern
 * @property {string | null} verdict
 */

/** @typedef {{html: string, verdict: string | null, seconds: number | null, date: string | null}} Measured */

/** How weights relate to dot-product attention, for the filter and the labels. @type {Record<string, string>} */
export const WEIGHTS = {
  exact: "dot-product weights",
  sparse: "fewer pairs",
  "low rank": "low rank",
  kernel: "kernel features",
  own: "weights of its own",
};

/**
 * Whether a mechanism has all words of a search in its name or description.
 * @param {{name: string, summary: string, cost: string, paper: string, weights: string}} one
 * @param {string} words
 * @param {string} weights  "" for all
 */
export const matches = (one, words, weights) => {
  const text = `${one.name} ${one.summary} ${one.cost} ${one.paper} ${WEIGHTS[one.weights] ?? ""}`.toLowerCase();
  return (!weights || one.weights === weights) && words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
};

const EXAMPLE = `import torch
from torch import nn


class RunningMean(nn.Module):
    """Every token gets the mean of the tokens up to it."""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.value = nn.Linear(n_embd, n_embd)

    def forward(self, x, padding=None):
        values = self.value(x)
        seen = torch.ones_like(values[..., :1])
        if padding is not None:
            hidden = padding[..., None]
            values, seen = values.masked_fill(hidden, 0), seen.masked_fill(hidden, 0)
        return values.cumsum(1) / seen.cumsum(1).clamp(min=1)
`;

/** @param {Mechanism} one @param {string} [label] */
const picture = (one, label) => {
  if (!one.cells) return h("span", { class: "picture none" }, "no pattern");
  const described = label ? `role="img" aria-label="${label.replace(/[^\w ,.:-]/g, "")}"` : 'aria-hidden="true"';
  return h("span", { class: "picture" }, fragment(`<svg viewBox="0 0 ${Number(one.size)} ${Number(one.size)}" ${described}>${one.cells}</svg>`));
};

/** @param {Mechanism} one */
const labels = (one) => h("span", { class: "labels" },
  h("span", { class: "label" }, WEIGHTS[one.weights] ?? one.weights),
  !one.causal && h("span", { class: "label" }, "not causal"),
  one.defect && h("span", { class: "label bad" }, "defect on purpose"),
  one.verdict && h("span", { class: `label ${one.verdict === "pass" ? "good" : "bad"}` }, `audit: ${one.verdict}`));

/**
 * Text whose `names` are set as code.
 * @param {string} text
 */
const marked = (text) => text.split("`").map((part, number) => (number % 2 ? h("code", {}, part) : part));

/** Sets `names` as code wherever an element has text. @param {Element} root */
const setCode = (root) => {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, (node) =>
    (node.nodeValue?.includes("`") && !node.parentElement?.closest("script, style, pre, code") ? NodeFilter.FILTER_ACCEPT : NodeFilter.FILTER_REJECT));
  /** @type {Text[]} */
  const found = [];
  while (walker.nextNode()) found.push(/** @type {Text} */ (walker.currentNode));
  for (const text of found) text.replaceWith(...marked(text.data));
};

/** @param {Mechanism} one */
const tile = (one) => h("li", {},
  h("a", { class: "tile", href: here(`/mechanisms?name=${encodeURIComponent(one.name)}`) },
    picture(one),
    h("span", { class: "words" },
      h("strong", {}, one.name),
      h("span", {}, marked(one.summary)),
      one.cost && h("span", { class: "cost" }, one.cost),
      labels(one))));

/**
 * A button that makes a slow request and tells its seconds; pressed again, it cancels it.
 * @param {string} label
 * @param {string} doing
 * @param {(signal: AbortSignal) => Promise<void>} request
 * @param {AbortSignal} left  that of the view
 */
const slowButton = (label, doing, request, left) => {
  const status = h("p", { class: "progress", role: "status" });
  const button = h("button", { type: "button", class: "primary" }, label);
  /** @type {AbortController | null} */
  let running = null;
  left.addEventListener("abort", () => running?.abort());
  button.addEventListener("click", async () => {
    if (running) return running.abort();
    const { signal } = running = new AbortController();
    const began = Date.now();
    const tell = () => (status.textContent = `${doing} … ${Math.round((Date.now() - began) / 1000)} s`);
    const timer = setInterval(tell, 1000);
    tell();
    button.textContent = "Cancel";
    try {
      await request(signal);
    } catch (error) {
      if (!signal.aborted) throw error;
    } finally {
      clearInterval(timer);
      running = null;
      status.textContent = "";
      button.textContent = label;
    }
  });
  /** @param {string} words */
  const rename = (words) => {
    label = words;
    if (!running) button.textContent = words;
  };
  return { button, status, rename };
};

/**
 * A button that measures, and what it found.
 * @param {{id: string, title: string, about: string, button: string, doing: string, path: string, command: string, earlier: Measured | null}} what
 * @param {AbortSignal} signal
 */
const measurement = (what, signal) => {
  const place = h("div", { class: "found" });
  const when = h("p", { class: "quiet" });
  const { button, status, rename } = slowButton(what.button, what.doing, async (own) => show(await post(what.path, {}, own)), signal);
  /** @param {Measured} found */
  const show = (found) => {
    showReport(place, found.html);
    when.textContent = found.date ? `Measured on ${found.date} in ${found.seconds} s, on the machine of ${IS_STATIC ? "the author" : "this server"}.` : "";
    button.className = "";
    rename(`${what.button} again`);
  };
  if (what.earlier) show(what.earlier);
  const controls = IS_STATIC ? !what.earlier && needsServer("Measuring", what.command) : h("div", { class: "controls" }, button);
  return h("section", { "aria-labelledby": what.id }, h("h2", { id: what.id }, what.title), h("p", {}, what.about), controls, status, when, place);
};

/** @param {boolean} allowed @param {AbortSignal} signal */
const pasting = (allowed, signal) => {
  const heading = h("h2", { id: "own-class" }, "Audit a class of your own");
  if (IS_STATIC) return h("section", { "aria-labelledby": "own-class" }, heading, needsServer("The audit", "attnlab audit my_file.py:MyAttention"));
  if (!allowed) {
    return h("section", { "aria-labelledby": "own-class" }, heading,
      h("p", {}, "This server runs no pasted code. To audit classes here, start it with:"),
      h("pre", { tabindex: "0" }, h("code", {}, "attnlab serve --allow-code")),
      h("p", { class: "quiet" }, "On the command line, ", h("code", {}, "attnlab audit my_file.py:MyAttention"), " does the same."));
  }
  const code = h("textarea", { rows: "18", spellcheck: "false", autocapitalize: "off", maxlength: "100000" });
  code.value = EXAMPLE;
  const name = h("input", { type: "text", maxlength: "100", placeholder: "the last class", autocomplete: "off" });
  const place = h("div", { class: "found", "aria-live": "polite" });
  const { button, status } = slowButton("Audit", "Auditing", async (own) => {
    place.replaceChildren();
    try {
      showReport(place, (await post("mechanisms/pasted", { code: code.value, class_name: name.value.trim() }, own)).html);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      place.replaceChildren(h("p", { class: "notice" }, error.message));
    }
  }, signal);
  return h("section", { "aria-labelledby": "own-class" }, heading,
    h("p", {}, "Paste a module that is built as Class(n_embd, n_head, block_size) and turns vectors (batch, tokens, n_embd) into others."
      + " It runs in a sandbox, for at most 60 seconds and with 2 GB of memory:"
      + " it cannot read your files, write any, start programs or use the network."),
    h("label", { class: "code" }, "Code", code),
    h("div", { class: "controls" }, h("label", {}, "Class", name), button),
    status, place);
};

/** @param {HTMLElement} root @param {AbortSignal} signal */
const showCatalogue = async (root, signal) => {
  const state = readState();
  const words = h("input", { type: "search", value: state.q ?? "", placeholder: "name, cost, paper" });
  const weights = h("select", {}, h("option", { value: "" }, "all"),
    Object.entries(WEIGHTS).map(([key, label]) => h("option", { value: key, selected: key === state.weights }, label)));
  const count = h("p", { class: "progress", role: "status" }, "Loading the mechanisms …");
  const tiles = h("ul", { class: "tiles" });
  root.append(h("h1", {}, title),
    h("p", { class: "lead" }, "Every kind of attention that a model can be made with: what it does, what it costs, and whether it keeps its promises."),
    h("div", { class: "controls" }, h("label", {}, "Search", words), h("label", {}, "Weights", weights)), count, tiles);
  /** @type {{mechanisms: Mechanism[], allow_code: boolean}} */
  const found = await get("mechanisms", signal);
  const all = found.mechanisms.map((one) => ({ one, element: tile(one) }));
  tiles.append(...all.map(({ element }) => element));
  const filter = () => {
    let shown = 0;
    for (const { one, element } of all) {
      element.hidden = !matches(one, words.value, weights.value);
      shown += element.hidden ? 0 : 1;
    }
    count.textContent = shown === all.length ? `${shown} mechanisms` : `${shown} of ${all.length} mechanisms`;
    writeState({ q: words.value, weights: weights.value }, signal);
  };
  words.addEventListener("input", filter);
  weights.addEventListener("change", filter);
  filter();
  root.append(h("p", { class: "quiet" }, "The pictures show real weights over a toy text of 32 tokens: each row is a token, darker columns are those it looks at; orange weights are negative."),
    pasting(found.allow_code, signal));
};

/** @param {HTMLElement} root @param {string} name @param {AbortSignal} signal */
const showOne = async (root, name, signal) => {
  const status = h("p", { class: "progress", role: "status" }, `Loading ${name} …`);
  root.append(h("p", {}, h("a", { href: here("/mechanisms") }, "← All mechanisms")), status);
  /** @type {{mechanism: Mechanism, html: string, audit: Measured | null, cost: Measured | null, lengths: number[]}} */
  const card = await get(`mechanisms/${encodeURIComponent(name)}`, signal);
  status.remove();
  document.title = `${name} – Mechanisms – attnlab`;
  const report = h("div", {});
  showReport(report, card.html);
  gloss(report, true);
  setCode(report);
  report.querySelectorAll(".layer label").forEach((label) => label.append(h("span", { class: "note" }, label.getAttribute("title")?.split(", ").at(-1))));
  const one = card.mechanism;
  report.querySelector("header")?.append(h("p", { class: "origin" },
    one.link && h("span", {}, "Paper: ", h("a", { href: one.link, target: "_blank", rel: "noopener" }, one.paper)),
    h("span", {}, "Source: ", h("code", {}, one.source)), labels(one)));
  const path = `mechanisms/${encodeURIComponent(name)}`;
  const least = card.lengths[0].toLocaleString("en");
  const most = card.lengths[card.lengths.length - 1].toLocaleString("en");
  root.append(report,
    measurement({
      id: "audit", title: "Audit", button: "Audit", doing: "Auditing", path: `${path}/audit`, command: `attnlab audit ${name}`, earlier: card.audit,
      about: "Tests from outside whether it sees the future, padding or other texts, and whether it is deterministic. Takes 5 to 40 seconds.",
    }, signal),
    measurement({
      id: "cost", title: "Measured cost", button: "Measure", doing: "Measuring", path: `${path}/cost`, command: `attnlab bench ${name}`, earlier: card.cost,
      about: `Times forward and backward at ${least} to ${most} tokens, in turns with torch's fused attention (SDPA), and measures peak memory.`
        + " Takes about half a minute, longer while the machine trains.",
    }, signal));
};

/** @param {HTMLElement} root @param {string[]} _ @param {AbortSignal} signal */
export const mount = (root, _, signal) => {
  const { name } = readState();
  return name ? showOne(root, name, signal) : showCatalogue(root, signal);
};
