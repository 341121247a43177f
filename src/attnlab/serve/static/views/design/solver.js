// Questions to the solver, and its verdicts in words.
import { IS_STATIC } from "../../lib/address.js";
import { ApiError, post } from "../../lib/api.js";
import { commandLine } from "../../lib/command.js";
import { h } from "../../lib/dom.js";
import { named, withSubscripts } from "./format.js";
import { writeQuestion } from "./state.js";

/** @typedef {import("./state.js").Question} Question */
/** @typedef {import("./state.js").Task} Task */
/** @typedef {import("./playground.js").Playground} Playground */

/** @type {[Task, string][]} */
const TASKS = [["select", "Select value"], ["average", "Average these"], ["reach", "Reach this point"]];
/** @type {Record<Task, string>} */
const NOTES = {
  select: "A query whose output is one value: attention as a copy.",
  average: "A query whose output is the mean of some values, and ignores the others.",
  reach: "A query whose output is any point: drag the target in the plane of values.",
};

export class Solver {
  /** @param {Playground} playground @param {Question} question @param {() => void} changed */
  constructor(playground, question, changed) {
    this.playground = playground;
    this.question = question;
    this.changed = changed;
    this.running = new AbortController();
    this.details = h("div", { class: "details" });
    this.note = h("p", { class: "quiet" });
    this.answer = h("div", { class: "verdict-box", role: "status" }); // shown elsewhere than the form
    this.button = h("button", { type: "submit", class: "primary" }, "Find a query");
    this.tasks = TASKS.map(([task, words]) => h("button", { type: "button", onclick: () => this.#choose(task) }, words));
    this.tolerance = h("input", {
      type: "text", inputmode: "decimal", size: 6, value: String(question.tolerance), oninput: () => this.#tolerated(),
    });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.about = "";
    this.outdated = h("span", { class: "outdated", hidden: true }, "The points or the question have changed since: ask again.");
    this.element = h(
      "form",
      { class: "solver", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.solve(); } },
      h("h2", {}, "Find a query for the output you want"),
      h("div", { class: "segments", role: "group", "aria-label": "What the output should be" }, this.tasks),
      this.note,
      h("div", { class: "controls" }, this.details, h("label", {}, "allowed error", this.tolerance), this.button),
      this.problem,
    );
    this.build();
  }

  /** What the address holds; a verdict is asked for again, unless it is about something else by now. */
  get state() {
    return { ...writeQuestion(this.question), asked: this.about !== "" && this.about === this.#subject ? "1" : "" };
  }

  /** Makes the controls that depend on the task and on the number of points. */
  build() {
    const { question } = this, n = this.playground.configuration.keys.length;
    question.index = Math.min(question.index, n - 1);
    question.indices = question.indices.filter((i) => i < n);
    this.tasks.forEach((button, place) => button.setAttribute("aria-pressed", String(TASKS[place][0] === question.task)));
    this.note.textContent = NOTES[question.task];
    this.playground.showTarget(question.task === "reach");
    this.details.replaceChildren(...{ select: () => this.#values(n), average: () => this.#subset(n), reach: () => [] }[question.task]());
    this.built = n;
  }

  /** @param {Task} task */
  #choose(task) {
    this.question.task = task;
    this.forget();
    this.build();
    this.changed();
  }

  /** Takes the last verdict away. */
  forget() {
    this.running.abort();
    this.about = "";
    this.answer.replaceChildren();
    this.problem.textContent = "";
    this.playground.prove({});
  }

  /** @param {number} n @returns {Node[]} */
  #values(n) {
    const choice = h(
      "select",
      { onchange: () => { this.question.index = Number(choice.value); this.#edited(); } },
      Array.from({ length: n }, (_, i) => h("option", { value: i, selected: i === this.question.index }, named("v", i))),
    );
    return [h("label", {}, "value", choice)];
  }

  /** @param {number} n @returns {Node[]} */
  #subset(n) {
    const boxes = Array.from({ length: n }, (_, i) => {
      const box = h("input", {
        type: "checkbox",
        checked: this.question.indices.includes(i),
        onchange: () => {
          this.question.indices = boxes.flatMap((one, j) => (one.box.checked ? [j] : []));
          this.#edited();
        },
      });
      return { box, label: h("label", { class: `inline series p${(i % 6) + 1}` }, box, h("span", { class: "swatch" }), h("span", {}, named("v", i))) };
    });
    const weights = h("input", {
      type: "text", placeholder: "equal", size: 14, value: this.question.weights,
      oninput: () => { this.question.weights = weights.value; this.#edited(); },
    });
    return [
      h("fieldset", { class: "subset" }, h("legend", {}, "values"), boxes.map((one) => one.label)),
      h("label", {}, "weights, such as 0.3, 0.7", weights),
    ];
  }

  #tolerated() {
    const given = Number(this.tolerance.value.replace(",", "."));
    const fine = given >= 1e-9 && given <= 1e6;
    this.problem.textContent = fine ? "" : "The allowed error must be a number such as 0.01.";
    if (fine) this.question.tolerance = given;
    if (fine) this.#edited();
    return fine;
  }

  #edited() {
    this.compare();
    this.changed();
  }

  /** The request, or null with a message if it makes no sense. */
  #request() {
    const { keys, values, scaled, target } = this.playground.configuration;
    const { task, index, indices, weights, tolerance } = this.question;
    const common = { task, keys, values, tolerance, scale: /** @type {"none" | "sqrt"} */ (scaled ? "sqrt" : "none") };
    if (task === "select") return { ...common, index };
    if (task === "reach") return { ...common, target };
    if (!indices.length) return this.#refuse("Choose at least one value.");
    if (!weights.trim()) return { ...common, indices };
    const shares = weights.split(/[,;:\s]+/).filter(Boolean).map(Number);
    const total = shares.reduce((sum, x) => sum + x, 0);
    if (shares.length !== indices.length || !shares.every((x) => x > 0) || !Number.isFinite(total)) {
      return this.#refuse(`Give ${indices.length} positive weights, one for each value chosen, or leave them empty.`);
    }
    // Shares such as 1, 3 are meant in proportion.
    return { ...common, indices, weights: Math.abs(total - 1) < 1e-6 ? shares : shares.map((x) => x / total) };
  }

  /** @param {string} words */
  #refuse(words) {
    this.problem.textContent = words;
    return null;
  }

  /** Asks the solver, and shows its verdict. @param {boolean} [move]  whether the query moves to the one found */
  async solve(move = true) {
    this.problem.textContent = "";
    const request = this.#tolerated() ? this.#request() : null;
    if (!request) return;
    this.running.abort();
    this.running = new AbortController();
    const about = this.#subject; // points may move while the solver works
    this.about = "";
    this.answer.replaceChildren(h("p", { class: "progress" }, "Solving …"));
    this.compare();
    try {
      const { result, facts, command } = IS_STATIC ? (await import("../../lib/solve.js")).solve(request) : await post("design/solve", request, this.running.signal);
      this.#show(result, facts, command, about, move);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      this.answer.replaceChildren();
      if (!(error instanceof ApiError)) throw error;
      this.problem.textContent = error.message;
    }
  }

  /** What a verdict is about. */
  get #subject() {
    const { keys, values, scaled, target } = this.playground.configuration;
    return JSON.stringify([keys, values, scaled, this.question.task === "reach" && target, writeQuestion(this.question)]);
  }

  /** Says so if the verdict shown is about other points than those of the planes, or about another question. */
  compare() {
    const stale = this.answer.hasChildNodes() && this.about !== "" && this.about !== this.#subject;
    this.answer.classList.toggle("stale", stale);
    this.outdated.hidden = !stale;
  }

  /**
   * @param {any} found
   * @param {[string, string][]} facts
   * @param {string} command
   * @param {string} about  what was asked about; if it has changed since, the planes stay as they are
   * @param {boolean} move
   */
  #show(found, facts, command, about, move) {
    this.about = about;
    const current = about === this.#subject;
    const { certificate } = found;
    const drawn = certificate?.type === "convex_combination" || (certificate?.type === "separating" && found.target.length === 2);
    const moved = move ? `The query has moved ${found.status === "solved" ? "there" : "to the best one found"}. ` : "";
    const proof = drawn ? "The dashed lines show the proof." : "";
    this.answer.replaceChildren(
      h("p", { class: "verdict-line" }, h("strong", {}, found.task), " ", h("span", { class: `badge ${found.status}` }, found.status), " ", this.outdated),
      h("p", {}, `${withSubscripts(found.statement)} ${current ? moved + proof : ""}`),
      h("dl", { class: "readings" }, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
      commandLine(command),
    );
    this.#edited();
    if (!current) return;
    if (move) this.playground.glide(found.query);
    this.playground.prove({
      combination: certificate?.type === "convex_combination" ? { index: certificate.index, weights: certificate.weights } : undefined,
      separation: certificate?.type === "separating" ? { direction: certificate.direction, target: found.target, bound: found.lower_bound } : undefined,
    });
  }

  end() {
    this.running.abort();
  }
}
