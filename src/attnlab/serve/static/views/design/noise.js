// The noise experiment: samples of the weight on one of two averaged values, for three designs, over the closed form.
import { IS_STATIC } from "../../lib/address.js";
import { ApiError, get, post } from "../../lib/api.js";
import { commandLine, needsServer } from "../../lib/command.js";
import { h, percent, svg } from "../../lib/dom.js";
import { chartExports } from "../../lib/report.js";
import { withSubscripts } from "./format.js";

/**
 * @typedef {object} Design
 * @property {string} name
 * @property {{ mean: number, sd: number, failures: number }} closed_form
 * @property {number[]} law
 */
/** @typedef {{ result: { statement: string, designs: Design[] }, agreement: string, low: number, high: number, samples: number[][], command: string }} Found */

const WIDE = 340, HIGH = 150, LEFT = 6, BINS = 80;
const COARSE = 20; // bins of the samples, which are few
const NOTES = ["q = C(k₀ + k₁)", "both q = C(k₀ + k₁); outputs averaged", "q = C·k₀ and q = C·k₁; outputs averaged"];

/** The height of a bar; a square root, so that rare weights are visible too. @param {number} share @param {number} most */
const height = (share, most) => HIGH * Math.sqrt(share / most);

/** @param {number} weight */
const across = (weight) => LEFT + weight * (WIDE - 2 * LEFT);

class Chart {
  /** @param {Design} design @param {number[]} samples @param {Found} found @param {string} note */
  constructor(design, samples, found, note) {
    this.samples = samples;
    this.low = found.low;
    this.high = found.high;
    this.counts = new Array(COARSE).fill(0);
    this.failed = 0;
    const coarse = Array.from({ length: COARSE }, (_, i) => sum(design.law.slice((i * BINS) / COARSE, ((i + 1) * BINS) / COARSE)));
    this.most = 1.15 * Math.max(...coarse);
    const outline = coarse.flatMap((share, i) => [i, i + 1].map((edge) => `${across(edge / COARSE).toFixed(1)},${(HIGH - height(share, this.most)).toFixed(1)}`));
    this.bars = coarse.map((_, i) => svg("rect", { class: "sampled", x: across(i / COARSE) + 1, width: (WIDE - 2 * LEFT) / COARSE - 2, y: HIGH, height: 0 }));
    this.now = svg("circle", { class: "now", r: 5, cy: HIGH - 8, cx: -20 });
    this.said = h("dd"); // of the samples so far
    const label = `Weight on v₀, ${design.name}: closed form with mean ${design.closed_form.mean.toFixed(3)} and standard deviation ${design.closed_form.sd.toFixed(3)}`;
    const chart = svg(
      "svg",
      { viewBox: `0 0 ${WIDE} ${HIGH + 22}`, role: "img", "aria-label": label },
      svg("rect", { class: "fails", x: across(0), width: across(found.low) - across(0), y: 0, height: HIGH }),
      svg("rect", { class: "fails", x: across(found.high), width: across(1) - across(found.high), y: 0, height: HIGH }),
      ...this.bars,
      svg("polyline", { class: "law", points: [`${across(0)},${HIGH}`, ...outline, `${across(1)},${HIGH}`].join(" ") }),
      svg("line", { class: "axis", x1: 0, x2: WIDE, y1: HIGH, y2: HIGH }),
      this.now,
      ...[0, 0.5, 1].map((x, i) => svg("text", { x: across(x), y: HIGH + 16, "text-anchor": ["start", "middle", "end"][i] }, ["0", "0.5", "1"][i])),
      svg("text", { x: across(0.25), y: HIGH + 16, "text-anchor": "middle" }, "weight on v₀"),
    );
    this.element = h(
      "figure",
      { class: "noise-chart" },
      h("figcaption", {}, design.name, h("span", { class: "note" }, note)),
      chart,
      h(
        "dl",
        { class: "readings" },
        h("dt", {}, "fails"), h("dd", { class: "share" }, h("strong", {}, percent(design.closed_form.failures)), " in closed form"),
        h("dt", {}, "samples"), this.said,
        h("dt", {}, "sd"), h("dd", {}, design.closed_form.sd.toFixed(3)),
      ),
      chartExports(chart, `Noise, ${design.name}`),
    );
    this.tell(0);
  }

  /** Adds samples up to this number. @param {number} from @param {number} to */
  add(from, to) {
    for (const weight of this.samples.slice(from, to)) {
      this.counts[Math.min(COARSE - 1, Math.floor(weight * COARSE))] += 1;
      if (weight < this.low || weight > this.high) this.failed += 1;
      this.now.setAttribute("cx", across(weight).toFixed(1));
    }
    this.bars.forEach((bar, i) => {
      const tall = Math.min(HIGH, height(this.counts[i] / Math.max(1, to), this.most));
      bar.setAttribute("y", (HIGH - tall).toFixed(1));
      bar.setAttribute("height", tall.toFixed(1));
    });
    this.tell(to);
  }

  /** @param {number} count */
  tell(count) {
    this.said.textContent = count ? `${this.failed} of ${count} failed, ${percent(this.failed / count)}` : "none yet";
  }
}

/** @param {number[]} numbers */
const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

const SETTINGS = /** @type {const} */ ([
  ["strength", "C", "strength C of the queries", 10],
  ["alpha", "a", "noise α in every direction", 1e-6],
  ["varying", "var", "variance of key 0 along itself", 0.5],
  ["n", "n", "number of keys", 10],
]);

export class Noise {
  /** @param {Record<string, string>} state @param {() => void} changed */
  constructor(state, changed) {
    this.running = new AbortController();
    this.frame = 0;
    this.count = 0;
    /** @type {Chart[]} */
    this.charts = [];
    this.fields = SETTINGS.map(([name, short, words, standard]) => {
      const input = h("input", { type: "text", inputmode: "decimal", size: 7, name, value: state[short] ?? String(standard), onchange: changed });
      return { name, short, standard, input, label: h("label", {}, words, input) };
    });
    this.pause = h("button", { type: "button", disabled: true, onclick: () => (this.frame ? this.#stop() : this.#play()) }, "Pause");
    this.place = h("div", { class: "noise-charts" });
    this.said = h("div", { role: "status" });
    this.problem = h("p", { class: "problem", role: "alert" });
    this.element = h(
      "div",
      {},
      h("p", { class: "quiet" }, "The query C(k₀ + k₁) averages v₀ and v₁ as long as both keys have the same length. Here the length of k₀ varies from sample to sample. One head swings between the two values, and so do two equal heads; two heads with one key each stay near one half."),
      h(
        "form",
        { class: "controls", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); this.run(); } },
        !IS_STATIC && [...this.fields.map((field) => field.label), h("button", { type: "submit", class: "primary" }, "Run")],
        this.pause,
      ),
      this.problem,
      this.place,
      this.said,
      IS_STATIC && needsServer("The experiment with other settings"),
    );
  }

  get state() {
    return Object.fromEntries(this.fields.map(({ short, standard, input }) => [short, input.value === String(standard) ? "" : input.value]));
  }

  async run() {
    this.problem.textContent = "";
    const settings = Object.fromEntries(this.fields.map(({ name, input }) => [name, input.value.trim() === "" ? NaN : Number(input.value.replace(",", "."))]));
    const wrong = this.fields.find(({ name }) => !Number.isFinite(settings[name]));
    if (wrong) {
      this.problem.textContent = `${wrong.label.firstChild?.textContent}: write a number such as ${wrong.standard}.`;
      return;
    }
    this.running.abort();
    this.running = new AbortController();
    this.#stop();
    this.said.replaceChildren(h("p", { class: "progress" }, "Simulating …"));
    try {
      const found = await (IS_STATIC ? get("design/noise", this.running.signal) : post("design/noise", settings, this.running.signal));
      this.#show(found);
    } catch (error) {
      if (error instanceof DOMException && error.name === "AbortError") return;
      this.said.replaceChildren();
      if (!(error instanceof ApiError)) throw error;
      this.problem.textContent = error.message;
    }
  }

  /** @param {Found} found */
  #show(found) {
    this.charts = found.result.designs.map((design, i) => new Chart(design, found.samples[i], found, NOTES[i]));
    this.place.replaceChildren(...this.charts.map((chart) => chart.element));
    this.said.replaceChildren(
      h("p", {}, withSubscripts(found.result.statement)),
      h("p", { class: "quiet" }, `Line: closed form. Bars: samples. Heights are square roots of shares, so that rare weights are visible too. A sample fails in the shaded region, where the weight is outside ${found.low} to ${found.high}. ${found.agreement}`),
      commandLine(found.command),
    );
    this.count = 0;
    this.pause.disabled = false;
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) {
      this.#advance(this.#most);
      this.#stop();
    } else this.#play();
  }

  get #most() {
    return this.charts[0]?.samples.length ?? 0;
  }

  /** @param {number} to */
  #advance(to) {
    const reached = Math.min(this.#most, to);
    for (const chart of this.charts) chart.add(this.count, reached);
    this.count = reached;
  }

  #play() {
    if (this.count >= this.#most) { // again from the first
      this.count = 0;
      for (const chart of this.charts) {
        chart.counts.fill(0);
        chart.failed = 0;
      }
    }
    this.pause.textContent = "Pause";
    let next = 0;
    /** @param {number} now */
    const step = (now) => {
      if (now >= next) { // the first samples one by one, the rest faster
        this.#advance(this.count + (this.count < 40 ? 1 : this.count < 120 ? 2 : 5));
        next = now + (this.count < 20 ? 160 : 60);
      }
      this.frame = this.count < this.#most && this.place.isConnected ? requestAnimationFrame(step) : 0;
      if (!this.frame) this.#stop();
    };
    this.frame = requestAnimationFrame(step);
  }

  #stop() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    this.pause.textContent = this.count && this.count >= this.#most ? "Again" : "Continue";
    if (!this.count) this.pause.textContent = "Pause";
  }

  end() {
    this.running.abort();
    this.#stop();
  }
}
