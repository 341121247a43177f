// The weights of all keys as bars with numbers, and what they imply.
import { h } from "../../lib/dom.js";
import { named, shown, shownVector, shownWeight } from "./format.js";

/** @typedef {import("../../lib/attention.js").Attention} Attention */

export class Weights {
  /** @param {(index: number) => void} remove */
  constructor(remove) {
    this.remove = remove;
    this.body = h("tbody");
    /** @type {{ row: HTMLElement, bar: HTMLElement, score: Text, weight: Text }[]} */
    this.rows = [];
    this.scoreName = new Text("score q·k");
    this.query = h("dd");
    this.output = h("dd");
    this.margin = h("dd");
    this.rest = h("dd");
    this.element = h(
      "div",
      { class: "weights" },
      h(
        "table",
        {},
        h("caption", { class: "visually-hidden" }, "Scores and weights of all keys"),
        h("colgroup", {}, ["label", "score", "bars", "weight", "cross"].map((name) => h("col", { class: name }))),
        h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "key"), h("th", { scope: "col", class: "number" }, this.scoreName), h("th", { scope: "col", colspan: 2 }, "weight"), h("th", { scope: "col", class: "no-export" }, h("span", { class: "visually-hidden" }, "remove")))),
        this.body,
      ),
      h(
        "dl",
        { class: "readings" },
        h("dt", {}, "query q"), this.query,
        h("dt", {}, "output"), this.output,
        h("dt", {}, "margin m"), this.margin,
        h("dt", {}, "other keys"), this.rest,
      ),
    );
  }

  /** Makes a row for every key. @param {number} n */
  build(n) {
    this.element.classList.toggle("many", n > 8);
    this.rows = Array.from({ length: n }, (_, i) => {
      const bar = h("span", { class: "fill" });
      const score = new Text(), weight = new Text();
      const remove = h(
        "button",
        { type: "button", class: "remove", "aria-label": `Remove key ${i} and value ${i}`, title: "Remove", disabled: n < 2, onclick: () => this.#removed(i) },
        "×",
      );
      const row = h(
        "tr",
        { class: `series p${(i % 6) + 1}` },
        h("th", { scope: "row" }, h("span", { class: "swatch" }), named("k", i)),
        h("td", { class: "number" }, score),
        h("td", { class: "track no-export" }, bar),
        h("td", { class: "number" }, weight),
        h("td", { class: "no-export" }, remove),
      );
      return { row, bar, score, weight };
    });
    this.body.replaceChildren(...this.rows.map(({ row }) => row));
  }

  /** Says how scores are computed. @param {boolean} scaled */
  describe(scaled) {
    this.scoreName.data = `score q·k${scaled ? "/√d" : ""}`;
  }

  /** @param {number} i */
  #removed(i) {
    this.remove(i);
    this.body.querySelectorAll("button")[Math.min(i, this.rows.length - 1)]?.focus();
  }

  /** @param {Attention} found @param {number[]} query */
  update(found, query) {
    const tie = found.margin <= 1e-9 * (1 + Math.abs(found.scores[found.leader])); // but for rounding
    this.rows.forEach(({ row, bar, score, weight }, i) => {
      bar.style.transform = `scaleX(${found.weights[i].toFixed(4)})`;
      score.data = shown(found.scores[i], 2);
      weight.data = shownWeight(found.weights[i]);
      row.classList.toggle("leads", i === found.leader && !tie);
    });
    this.query.textContent = `${shownVector(query)}, length ${shown(Math.hypot(...query))}`;
    this.output.textContent = shownVector(found.output);
    const n = this.rows.length, leader = named("k", found.leader);
    if (found.next < 0) {
      this.margin.textContent = "one key has all the weight";
      this.rest.textContent = "none";
      return;
    }
    const others = n > 2 ? `${n - 1}e⁻ᵐ/(1 + ${n - 1}e⁻ᵐ)` : "e⁻ᵐ/(1 + e⁻ᵐ)";
    this.margin.textContent = tie ? `0: ${leader} and ${named("k", found.next)} share the lead` : `${shown(found.margin)}: ${leader} leads ${named("k", found.next)}`;
    this.rest.textContent = `1 − ${named("a", found.leader)} = ${shownWeight(found.rest)} ≤ ${others} = ${shownWeight(found.bound)}`;
  }
}
