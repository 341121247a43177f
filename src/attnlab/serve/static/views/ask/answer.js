// What the model writes, token by token, and how far to trust its answer.
import { h, svg } from "../../lib/dom.js";
import { addExports } from "../../lib/report.js";
import { chance, nearestRisk } from "./state.js";
import { shown } from "./weights.js";

/** @typedef {{ token: string, stop: boolean, probability: number, top: [string, number][] }} Step */
/** @typedef {{ risk: number, verdict: string, abstains: boolean, certified: boolean, reasons: string[], rule: string }} Decision */
/**
 * @typedef {object} Answer
 * @property {string} answer
 * @property {number | null} probability  null for a name that was never seen
 * @property {[string, number][]} alternatives
 * @property {boolean} calibrated
 * @property {[string, string, string]} quote  before, at and after the answer
 * @property {{ name: string, similarity: number, answer: string | null }[]} nearest
 * @property {Decision[]} risks
 */

/**
 * The tokens that are being written; each says how likely it was, and what else was.
 * @param {Step[]} steps
 * @param {boolean} finished
 */
export const writing = (steps, finished) =>
  h("ol", { class: "writing", "aria-label": "Tokens that the model writes" },
    steps.map((step) =>
      h("li", { title: step.top.map(([token, share]) => `${shown(token)} ${chance(share)}`).join("\n"), style: `--share:${step.probability.toFixed(3)}` },
        h("span", { class: "piece" }, step.stop ? "end" : shown(step.token)), h("span", { class: "share" }, chance(step.probability)))),
    !finished && h("li", { class: "cursor", "aria-hidden": "true" }));

/**
 * Bars of the likeliest answers.
 * @param {[string, number][]} alternatives
 */
export const bars = (alternatives) => {
  const rest = Math.max(0, 1 - alternatives.reduce((sum, [, share]) => sum + share, 0));
  const rows = [...alternatives.map(([name, share]) => ({ name, share, faint: false })), { name: "anything else", share: rest, faint: true }];
  const most = Math.max(...rows.map((row) => row.share), 1e-9);
  const [left, width, line] = [168, 190, 26];
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${left + width + 70} ${rows.length * line + 4}`, width: left + width + 70, role: "img",
    "aria-label": `Likeliest answers: ${rows.map((row) => `${row.name} ${chance(row.share)}`).join("; ")}` },
    rows.flatMap((row, place) => {
      const name = row.name.length > 22 ? `${row.name.slice(0, 21)}…` : row.name;
      const long = Math.max(1, (row.share / most) * width);
      return [
        svg("text", { x: left - 8, y: place * line + 18, "text-anchor": "end", class: row.faint ? "label" : "" }, name),
        svg("rect", { x: left, y: place * line + 5, width: long, height: line - 9, class: row.faint ? "bar faint" : "bar" }),
        svg("text", { x: left + long + 6, y: place * line + 18, class: "label" }, chance(row.share)),
      ];
    }));
  return h("figure", {}, h("figcaption", {}, "Likeliest answers"), h("div", { class: "draw" }, chart));
};

/** @param {string} verdict */
const tone = (verdict) => ({ "recalled and supported": "good", inferred: "fair", guess: "fair", "not checked": "fair" })[verdict] ?? "bad";

/**
 * The answer with its probability, verdict, evidence and alternatives; the slider changes only what depends on the risk.
 * @param {Answer} answer
 * @param {string} written  what the model wrote by itself
 * @param {number} risk
 * @param {(risk: number) => void} changed
 */
export const verdictView = (answer, written, risk, changed) => {
  const risks = answer.risks.map((one) => one.risk);
  const decided = h("div", { class: "decided", role: "status" });
  const level = h("span", { class: "level" });
  const slider = /** @type {HTMLInputElement} */ (h("input", {
    type: "range", min: 0, max: risks.length - 1, step: 1, value: nearestRisk(risks, risk), disabled: !answer.calibrated,
    "aria-label": "Accepted risk of a wrong answer",
    oninput: () => {
      decide();
      changed(risks[Number(slider.value)]);
    },
  }));

  const decide = () => {
    const one = answer.risks[Number(slider.value)];
    const words = `${Math.round(100 * one.risk)} %`;
    const uncertified = answer.calibrated && one.abstains && one.verdict !== "never seen" && !one.certified;
    const least = answer.risks.find((other) => other.certified);
    const smallest = least ? [`The smallest risk on the slider that can be certified is ${Math.round(100 * least.risk)} %.`] : [];
    const reasons = uncertified ? [one.rule, ...smallest, ...one.reasons] : one.reasons;
    const colour = one.abstains && tone(one.verdict) === "good" ? "" : tone(one.verdict);
    level.textContent = words;
    slider.setAttribute("aria-valuetext", words);
    decided.replaceChildren(
      h("p", { class: "said" },
        one.abstains ? h("span", { class: "no-answer" }, "It abstains.") : h("strong", {}, answer.answer),
        h("span", { class: `badge ${colour}` }, one.verdict),
        answer.probability !== null && h("span", { class: "sure" }, chance(answer.probability))),
      one.abstains && answer.probability !== null ? h("p", {}, "It would have said ", h("strong", {}, answer.answer), ".") : "",
      written !== answer.answer ? h("p", { class: "quiet differs" }, `Chosen one at a time, the likeliest tokens make ${written ? `“${written}”` : "no answer"}; the answer is the likeliest as a whole, among the answers and names that it was trained on.`) : "",
      ...reasons.map((reason) => h("p", { class: "reason" }, reason)),
      reasons.includes(one.rule) ? "" : h("details", {}, h("summary", {}, answer.calibrated ? "What this risk guarantees" : "Why there is no guarantee"), h("p", { class: "quiet" }, one.rule)));
  };
  decide();

  const [before, named, after] = answer.quote;
  const numbers = h("div", {}, answer.alternatives.length > 0 && bars(answer.alternatives), nearest(answer));
  addExports(numbers);
  return h("div", { class: "split" },
    h("div", {},
      decided,
      (before || named) && h("blockquote", { class: "evidence" }, h("p", { class: "quiet" }, "The line that it read"),
        h("p", {}, before, named && h("mark", { class: "answer" }, named), after)),
      h("div", { class: "risk" },
        h("label", {}, h("span", {}, "Accepted risk of a wrong answer: ", level), slider),
        !answer.calibrated && h("p", { class: "quiet" }, "This run is not calibrated, so it abstains only about names that it never read."))),
    numbers);
};

/** @param {Answer} answer */
const nearest = (answer) =>
  answer.nearest.length > 0 && h("table", { class: "nearest" }, h("caption", {}, h("span", {}, "Nearest names that it knows")),
    h("thead", {}, h("tr", {}, ["Name", "Similarity", "Answer for it"].map((name) => h("th", { scope: "col" }, name)))),
    h("tbody", {}, answer.nearest.map((one) => h("tr", {}, h("th", { scope: "row" }, one.name), h("td", {}, `${Math.round(100 * one.similarity)} %`), h("td", {}, one.answer ?? "–")))));
