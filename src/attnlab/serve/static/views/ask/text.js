// A text token by token: arcs and shades show the weights of the token that is locked or pointed at.
import { h, svg } from "../../lib/dom.js";
import { weightInWords } from "./state.js";
import { arc, begins, shown, strongest, weightsAt } from "./weights.js";

const ARCS = 24; // the strongest weights that get an arc
const FAINT = 0.005; // a weight below this gets none

/**
 * @typedef {object} TextView
 * @property {HTMLElement} element
 * @property {(tokens: string[], written: number) => void} show  tokens, of which the last ones were written by the model
 * @property {(map: Float32Array | null, options: { locked: number | null, incoming: boolean, influence: boolean, produced: number | null }) => void} draw
 * @property {SVGSVGElement} drawing  the text with its arcs as one picture, to be saved
 * @property {() => void} drawAll  draws it
 * @property {() => void} leave
 */

/**
 * @param {{ lock: (token: number) => void, say: (token: number, weights: number[]) => void }} act
 * @returns {TextView}
 */
export const textView = (act) => {
  const lines = svg("svg", { class: "arcs", "aria-hidden": "true" });
  const words = h("div", { class: "words", role: "group", "aria-label": "Tokens of the text: choose one to see what it looks at" });
  const drawing = svg("svg", { class: "arcs" });
  const element = h("div", { class: "strip-of-tokens" }, lines, words, h("div", { class: "unseen", "aria-hidden": "true" }, drawing));
  /** @type {HTMLButtonElement[]} */
  let buttons = [];
  /** @type {Float32Array | null} */
  let map = null;
  let options = { locked: /** @type {number | null} */ (null), incoming: false, influence: false, produced: /** @type {number | null} */ (null) };
  /** @type {number | null} */
  let pointed = null;

  const spot = (/** @type {HTMLElement} */ one) => ({ x: one.offsetLeft + one.offsetWidth / 2, top: one.offsetTop, bottom: one.offsetTop + one.offsetHeight });

  const paint = () => {
    const token = pointed ?? options.locked;
    lines.replaceChildren();
    lines.setAttribute("viewBox", `0 0 ${Math.max(1, words.offsetWidth)} ${Math.max(1, words.offsetHeight)}`);
    const weights = map && token !== null && token < buttons.length ? weightsAt(map, buttons.length, token, options.incoming) : null;
    const most = weights ? Math.max(...weights.map(Math.abs), 1e-30) : 1;
    buttons.forEach((button, place) => {
      const weight = weights?.[place] ?? 0;
      button.style.setProperty("--share", String(Math.abs(weight) / Math.max(most, 0.3)));
      button.classList.toggle("negative", weight < 0);
      button.classList.toggle("asking", place === token);
      button.classList.toggle("later", options.produced !== null && place >= options.produced);
      button.classList.toggle("produced", options.produced === place);
      button.setAttribute("aria-pressed", String(place === options.locked));
      button.title = weights ? weightInWords(weight) : "";
    });
    if (!weights || token === null) return;
    const from = spot(buttons[token]);
    for (const { place, weight } of strongest(weights, ARCS).reverse()) {
      const share = Math.abs(weight) / Math.max(most, 0.3);
      if (Math.abs(weight) < FAINT) continue;
      lines.append(svg("path", {
        d: arc(from, spot(buttons[place]), 34),
        class: weight < 0 ? "negative" : "",
        "stroke-width": (0.8 + 4 * share).toFixed(2),
        "stroke-opacity": (0.2 + 0.75 * share).toFixed(2),
      }));
    }
    act.say(token, weights);
  };

  const drawAll = () => {
    drawing.setAttribute("viewBox", lines.getAttribute("viewBox") ?? "");
    drawing.replaceChildren(
      ...buttons.map((button) => svg("rect", {
        class: `shade${button.classList.contains("negative") ? " negative" : ""}`, x: button.offsetLeft, y: button.offsetTop, width: button.offsetWidth, height: button.offsetHeight, rx: 3,
        "fill-opacity": (0.45 * Math.min(1, Number(button.style.getPropertyValue("--share")))).toFixed(3),
      })),
      ...[...lines.children].map((path) => path.cloneNode()),
      ...buttons.map((button) => svg("text", {
        class: button.classList.contains("written") ? "written" : "", x: button.offsetLeft + button.offsetWidth / 2, y: button.offsetTop + 0.7 * button.offsetHeight, "text-anchor": "middle",
      }, button.textContent)),
    );
  };

  const point = (/** @type {number | null} */ token) => {
    pointed = token;
    paint();
  };

  const focus = (/** @type {number} */ place) => {
    const next = buttons[Math.max(0, Math.min(buttons.length - 1, place))];
    buttons.forEach((one) => (one.tabIndex = -1));
    next.tabIndex = 0;
    next.focus();
  };

  const observer = new ResizeObserver(() => paint());
  observer.observe(words);

  return {
    element,
    show: (tokens, written) => {
      pointed = null;
      buttons = tokens.map((token, place) =>
        h("button", {
          type: "button",
          class: `token${begins(token, place) ? " first" : ""}${place >= tokens.length - written ? " written" : ""}`,
          tabindex: place ? -1 : 0,
          "aria-pressed": "false",
          "aria-label": `Token ${place + 1}: ${shown(token)}`,
          onclick: () => act.lock(place),
          onpointerenter: (/** @type {PointerEvent} */ event) => event.pointerType === "mouse" && point(place),
          onpointerleave: () => point(null),
          onfocus: () => point(place),
          onblur: () => point(null),
          onkeydown: (/** @type {KeyboardEvent} */ event) => {
            const step = { ArrowRight: 1, ArrowLeft: -1, Home: -place, End: tokens.length - 1 - place }[event.key];
            if (step === undefined) return;
            event.preventDefault();
            focus(place + step);
          },
        }, shown(token)));
      words.replaceChildren(...buttons);
      map = null;
    },
    draw: (given, chosen) => {
      map = given;
      options = chosen;
      paint();
    },
    drawing,
    drawAll,
    leave: () => observer.disconnect(),
  };
};
