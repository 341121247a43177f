// All numbers of a configuration in a table that can be edited, for any number of dimensions.
import { h } from "../../lib/dom.js";
import { named } from "./format.js";
import { shortNumber } from "./state.js";

/** @typedef {import("./state.js").Configuration} Configuration */

export class Numbers {
  /** @param {(configuration: Configuration) => void} change */
  constructor(change) {
    this.change = change;
    /** @type {{ input: HTMLInputElement, vector: () => number[], place: number }[]} */
    this.cells = [];
    this.shape = "";
    /** @type {Configuration | null} */
    this.configuration = null;
    this.head = h("thead");
    this.body = h("tbody");
    const table = h("table", { class: "numbers" }, h("caption", { class: "visually-hidden" }, "Keys, values and query"), this.head, this.body);
    this.problem = h("p", { class: "problem", role: "alert" });
    this.element = h("div", {}, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of all numbers" }, table), this.problem);
  }

  /** Shows a configuration; makes the table again if its shape has changed. @param {Configuration} configuration @param {boolean} withTarget */
  show(configuration, withTarget) {
    this.configuration = configuration;
    const shape = [configuration.keys.length, configuration.direction.length, configuration.target.length, withTarget].join();
    if (shape !== this.shape) this.#build(configuration, withTarget);
    this.shape = shape;
    for (const { input, vector, place } of this.cells) {
      if (input === document.activeElement) continue; // what is being typed stays
      const text = shortNumber(vector()[place]);
      if (Number(input.value) !== Number(text) || input.value === "") input.value = text;
      input.removeAttribute("aria-invalid");
    }
    this.problem.textContent = "";
  }

  /** @param {Configuration} configuration @param {boolean} withTarget */
  #build({ keys, direction, target }, withTarget) {
    this.cells = [];
    const current = () => /** @type {Configuration} */ (this.configuration);
    const width = direction.length, height = target.length;
    /** @param {number} size @param {string} name @param {() => number[]} vector */
    const cells = (size, name, vector) =>
      Array.from({ length: size }, (_, place) => {
        const input = h("input", {
          type: "text", inputmode: "decimal", "aria-label": `${name}, coordinate ${place + 1}`, oninput: () => this.#edited(input, vector, place),
        });
        this.cells.push({ input, vector, place });
        return h("td", {}, input);
      });
    const rows = keys.map((_, i) =>
      h(
        "tr",
        { class: `series p${(i % 6) + 1}` },
        h("th", { scope: "row" }, h("span", { class: "swatch" }), String(i)),
        cells(width, `key ${i}`, () => current().keys[i]),
        cells(height, `value ${i}`, () => current().values[i]),
      ),
    );
    const empty = (/** @type {number} */ size) => Array.from({ length: size }, () => h("td"));
    const query = h("tr", {}, h("th", { scope: "row" }, "q ÷ scale"), cells(width, "query before scaling", () => current().direction), empty(height));
    const aim = withTarget && h("tr", {}, h("th", { scope: "row" }, "target"), empty(width), cells(height, "target", () => current().target));
    /** @param {string} letter @param {number} size */
    const heads = (letter, size) => Array.from({ length: size }, (_, i) => h("th", { scope: "col" }, named(letter, i + 1)));
    this.head.replaceChildren(h("tr", {}, h("th", { scope: "col" }, "point"), heads("key x", width), heads("value x", height)));
    this.body.replaceChildren(...rows, query, ...(aim ? [aim] : []));
  }

  /** @param {HTMLInputElement} input @param {() => number[]} vector @param {number} place */
  #edited(input, vector, place) {
    const given = Number(input.value.trim().replace("−", "-").replace(",", "."));
    const fine = input.value.trim() !== "" && Number.isFinite(given) && Math.abs(given) <= 1e12;
    this.problem.textContent = fine ? "" : `${input.getAttribute("aria-label")}: write a number such as 0.5, at most 1e12.`;
    fine ? input.removeAttribute("aria-invalid") : input.setAttribute("aria-invalid", "true");
    if (!fine || !this.configuration) return;
    vector()[place] = given;
    this.change(this.configuration);
  }
}
