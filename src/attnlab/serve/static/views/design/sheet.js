// Sheets of tasks: load one, answer it with the query of the planes or by typing, and get the marks.
import { ApiError, get, post } from "../../lib/api.js";
import { IS_STATIC, here, pack, unpack } from "../../lib/address.js";
import { copyButton, needsServer } from "../../lib/command.js";
import { h } from "../../lib/dom.js";
import { save } from "../../lib/report.js";
import { asToml, shown } from "./format.js";
import { center, queryOf, shortNumber } from "./state.js";

/** @typedef {import("./playground.js").Playground} Playground */
/**
 * @typedef {object} SheetTask
 * @property {string} name
 * @property {string} ask
 * @property {string} text
 * @property {number} points
 * @property {string} why_not
 * @property {boolean} unmarked
 * @property {number | null} tolerance
 * @property {"none" | "sqrt"} scale
 * @property {number[][] | null} keys
 * @property {number[][] | null} values
 * @property {number[] | null} target
 * @property {string} hint
 */
/** @typedef {{ passed: boolean, name: string, earned: number, points: number, message: string }} Mark */

const LONGEST = 100_000; // characters of a sheet
const LONGEST_LINK = 8000; // characters of a packed sheet with its answers: servers and mail programs cut longer addresses

/** @param {number} points */
const pointsOf = (points) => `${shown(points)} point${points === 1 ? "" : "s"}`;

class Card {
  /**
   * @param {SheetTask} task
   * @param {Playground} playground
   * @param {number} number
   * @param {(card: Card) => void} follow
   * @param {() => void} answered  called when the answer is another
   */
  constructor(task, playground, number, follow, answered) {
    this.task = task;
    this.playground = playground;
    this.follow = follow;
    this.answered = answered;
    this.outcome = h("p", { class: "outcome" });
    this.input = h("input", { type: "text", placeholder: task.hint, maxlength: 5000, autocomplete: "off", spellcheck: "false", oninput: answered });
    const allowed = task.tolerance === null ? "" : ` Largest allowed error: ${shown(task.tolerance)}.`;
    this.element = h(
      "li",
      { class: "task-card" },
      h("p", { class: "task-name" }, h("strong", {}, `${number}. ${task.name}`), " ", h("span", { class: "quiet" }, pointsOf(task.points))),
      h("p", {}, task.text, h("span", { class: "quiet" }, allowed)),
      task.why_not
        ? h("p", { class: "quiet" }, `Cannot be answered here. ${task.why_not}`)
        : h(
            "div",
            { class: "controls" },
            task.keys && task.values && h("button", { type: "button", onclick: () => this.show() }, "Show in the planes"),
            h("label", { class: "typed" }, `answer to ${task.name}`, this.input),
            task.keys && h("button", { type: "button", onclick: () => this.use() }, "Use the current query"),
          ),
      task.unmarked && h("p", { class: "quiet" }, "Marked by your teacher: this sheet has no solution of it."),
      this.outcome,
    );
  }

  /** Loads the keys and values of the task into the planes. */
  show() {
    const { keys, values, target, scale } = this.task;
    if (!keys || !values) return;
    const before = this.playground.configuration;
    const same = JSON.stringify([before.keys, before.values]) === JSON.stringify([keys, values]);
    this.playground.showTarget(Boolean(target));
    this.playground.set({
      keys: structuredClone(keys),
      values: structuredClone(values),
      direction: same ? before.direction : keys[0].map((_, i) => (i ? 0 : 0.5)),
      scale: same ? before.scale : 1,
      scaled: scale === "sqrt",
      target: target ? [...target] : center(values),
    });
    this.follow(this);
  }

  /** Answers with the query of the planes. */
  use() {
    const query = queryOf(this.playground.configuration);
    const fits = this.task.keys?.[0].length === query.length;
    this.input.value = fits ? `[${query.map(shortNumber).join(", ")}]` : "";
    this.outcome.textContent = fits ? "" : `The query has ${query.length} numbers and a key of this task has ${this.task.keys?.[0].length}: press "Show in the planes" first.`;
    this.outcome.className = "outcome";
    this.answered();
    return fits;
  }

  /** @param {Mark | undefined} mark */
  mark(mark) {
    this.element.classList.remove("passed", "failed");
    this.outcome.className = "outcome";
    this.outcome.textContent = "";
    if (!mark) return;
    this.element.classList.add(mark.passed ? "passed" : "failed");
    const verdict = mark.passed ? "passed" : "failed";
    this.outcome.append(h("span", { class: `badge ${verdict}` }, verdict), ` ${shown(mark.earned)} of ${pointsOf(mark.points)}: ${mark.message}`);
  }
}

export class Sheet {
  /** @param {Playground} playground @param {Record<string, string>} state @param {() => void} changed */
  constructor(playground, state, changed) {
    this.playground = playground;
    this.changed = changed;
    this.name = state.sheet ?? ""; // of an example
    this.packed = state.toml ?? ""; // the students' sheet, for the address, if it is no example
    this.typed = state.answers ?? ""; // packed answers, one per line
    this.hasSolutions = false; // whoever loaded it is a teacher
    this.text = "";
    this.running = new AbortController();
    /** @type {Card[]} */
    this.cards = [];
    /** @type {{ name: string, title: string, text: string }[]} */
    this.examples = [];
    this.choice = h("select", { onchange: () => this.#example(this.choice.value) }, h("option", { value: "" }, "choose an example"));
    this.file = h("input", { type: "file", accept: ".toml", onchange: () => this.#fromFile() });
    this.pasted = h("textarea", { rows: 8, spellcheck: "false", placeholder: '[[task]]\nask = "select"\nindex = 0\nkeys = [[1, 0], [0, 1]]\nvalues = [[1, 0], [0, 1]]' });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.progress = h("p", { class: "progress", role: "status" });
    this.list = h("ol", { class: "tasks" });
    this.total = h("p", { class: "total", role: "status" });
    this.copy = copyButton("Copy link for students", () => `${location.origin}${here(`/design?tab=sheet&toml=${this.packed}`)}`);
    this.markButton = h("button", { type: "submit", class: "primary" }, "Mark the answers");
    this.form = h(
      "form",
      { hidden: true, onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.#mark(); } },
      this.list,
      h(
        "div",
        { class: "controls" },
        !IS_STATIC && this.markButton,
        h("button", { type: "button", onclick: () => this.#save() }, "Save as answers.toml"),
        this.copy,
        this.total,
      ),
    );
    this.current = h("div", { class: "current-task", hidden: true }); // stands above the planes
    this.taskName = state.task ?? "";
    this.element = h(
      "div",
      {},
      h("p", { class: "quiet" }, "A sheet of ", h("code", {}, "attnlab check"), ": any answer that has the property asked for passes, whichever way it was found."),
      h("div", { class: "controls" }, h("label", {}, "example", this.choice), !IS_STATIC && h("label", {}, "file (TOML)", this.file)),
      IS_STATIC ? needsServer("Marking, and reading another sheet,", "attnlab check SHEET.toml answers.toml") : h("details", {}, h("summary", {}, "Paste a sheet"), h("label", { class: "pasted" }, "text of the sheet", this.pasted), h("button", { type: "button", onclick: () => this.#load(this.pasted.value, "") }, "Load the text")),
      this.problem,
      this.progress,
      this.form,
    );
  }

  get state() {
    return { sheet: this.name, toml: this.packed, answers: this.typed, task: this.taskName };
  }

  /** Shows the examples, and the one that the address names; called when the panel is first opened. */
  async open() {
    if (this.examples.length) return;
    await this.#tried("Loading …", async (signal) => {
      this.examples = await get("design/sheets", signal);
      this.choice.append(...this.examples.map(({ name, title }) => h("option", { value: name }, title)));
      const wanted = this.taskName, typed = this.typed;
      if (this.packed) await this.#fromLink();
      else await this.#example(this.name);
      const card = this.cards.find(({ task }) => task.name === wanted);
      if (card?.task.keys) this.#follow(card);
      if (typed && this.cards.length) await this.#answer(typed);
    });
  }

  /** @param {string} name */
  async #example(name) {
    const example = this.examples.find((one) => one.name === name);
    if (!example) return;
    this.choice.value = name;
    await this.#load(example.text, name);
  }

  async #fromLink() {
    try {
      this.pasted.value = await unpack(this.packed);
    } catch {
      this.packed = "";
      this.problem.textContent = "The sheet in the link is damaged: ask for the link again.";
      return;
    }
    await this.#load(this.pasted.value, "");
  }

  /** Fills in the answers of a link. @param {string} packed */
  async #answer(packed) {
    try {
      const lines = (await unpack(packed)).split("\n");
      this.cards.forEach((card, i) => (card.input.value = lines[i] ?? ""));
    } catch {
      this.problem.textContent = "The answers in the link are damaged: ask for the link again.";
    }
    await this.#answered();
  }

  /** Packs the answers for the address. */
  async #answered() {
    const current = () => this.cards.map((card) => card.input.value).join("\n").trimEnd();
    const text = current();
    const packed = text ? await pack(text) : "";
    if (text !== current()) return; // more has been typed
    this.typed = !this.hasSolutions && (this.name || this.packed) && packed.length + this.packed.length <= LONGEST_LINK ? packed : "";
    this.changed();
  }

  async #fromFile() {
    const file = this.file.files?.[0];
    if (!file) return;
    if (file.size > LONGEST) {
      this.problem.textContent = `The file is longer than ${LONGEST.toLocaleString("en")} characters: is it a sheet?`;
      return;
    }
    await this.#load(await file.text(), "");
  }

  /** @param {string} text @param {string} name  of an example */
  async #load(text, name) {
    if (!text.trim()) {
      this.problem.textContent = "The sheet is empty: paste the text of a TOML file with [[task]] in it.";
      return;
    }
    await this.#tried("Reading the sheet …", async (signal) => {
      const read = await (IS_STATIC ? get(`design/sheet/${name}`, signal) : post("design/sheet", { text }, signal));
      const packed = name ? "" : await pack(read.for_students);
      this.text = text;
      this.name = name;
      this.packed = packed.length > LONGEST_LINK ? "" : packed;
      this.hasSolutions = read.has_solutions;
      this.copy.hidden = !this.packed;
      if (!name) this.choice.value = "";
      this.cards = read.tasks.map((/** @type {SheetTask} */ task, /** @type {number} */ i) => new Card(task, this.playground, i + 1, (card) => this.#follow(card, true), () => this.#answered()));
      this.typed = "";
      this.#unfollow();
      this.list.replaceChildren(...this.cards.map((card) => card.element));
      this.list.setAttribute("aria-label", read.title);
      this.total.textContent = `${read.title}: ${pointsOf(read.points)} in all.${packed && !this.packed ? " The sheet is too long for a link: send its file too." : ""}`;
      this.form.hidden = false;
      this.changed();
    });
  }

  /** Shows a task above the planes, where it is worked on. @param {Card} card @param {boolean} [scroll] */
  #follow(card, scroll = false) {
    const said = h("span", { role: "status" });
    const use = () => {
      said.textContent = card.use() ? `Noted: ${card.input.value}` : "The query does not fit this task: press \"Show in the planes\" again.";
    };
    this.current.replaceChildren(
      h("span", {}, h("strong", {}, `Task "${card.task.name}": `), card.task.text),
      h("button", { type: "button", class: "primary", onclick: use }, "Use the current query"),
      h("button", { type: "button", onclick: () => card.input.focus() }, "Back to the sheet"),
      h("button", { type: "button", onclick: () => this.#unfollow() }, "Close"),
      said,
    );
    this.current.hidden = false;
    this.taskName = card.task.name;
    this.changed();
    if (scroll) this.current.scrollIntoView({ block: "start" });
  }

  #unfollow() {
    this.current.hidden = true;
    this.taskName = "";
    this.changed();
  }

  /** What was typed, by task. */
  #answers() {
    return Object.fromEntries(this.cards.filter((card) => !card.task.why_not).map((card) => [card.task.name, card.input.value]));
  }

  async #save() {
    const text = IS_STATIC ? asToml(this.#answers()) : await post("design/answers", { answers: this.#answers() });
    save(new Blob([text], { type: "application/toml" }), "answers.toml");
  }

  async #mark() {
    await this.#tried("Marking …", async (signal) => {
      const answers = this.#answers();
      const marks = await post("design/mark", { text: this.text, answers }, signal);
      /** @type {Mark[]} */
      const answered = marks.tasks.filter(({ name = "" }) => answers[name]?.trim());
      for (const card of this.cards) card.mark(answered.find(({ name }) => name === card.task.name));
      this.total.textContent = `${shown(marks.earned)} of ${pointsOf(marks.points)}; ${answered.length} of ${marks.tasks.length} tasks answered. ${marks.notes.join(" ")}`;
    });
  }

  /** Runs a request in place of the one before; an error is one line. @param {string} words @param {(signal: AbortSignal) => Promise<void>} work */
  async #tried(words, work) {
    this.running.abort();
    const mine = (this.running = new AbortController());
    this.problem.textContent = "";
    this.progress.textContent = words;
    try {
      await work(mine.signal);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      if (!(error instanceof ApiError)) throw error;
      this.problem.textContent = error.message;
    } finally {
      if (mine === this.running) this.progress.textContent = "";
    }
  }

  end() {
    this.running.abort();
  }
}
