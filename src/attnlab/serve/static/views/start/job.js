// A job: its command, progress, log, and buttons to stop it or to go on with it.
import { post } from "../../lib/api.js";
import { commandLine } from "../../lib/command.js";
import { h } from "../../lib/dom.js";
import { address, stateWords } from "../run/entries.js";
import { follow } from "../run/live.js";

/**
 * @typedef {object} Job
 * @property {number} number
 * @property {string} line
 * @property {string} folder
 * @property {boolean} exists
 * @property {string} state
 * @property {{ name: string, state: string, progress: number | null, loss: number | null }[]} runs
 */

/**
 * @param {Job} job
 * @param {(job: Job) => void} started  called with a job that goes on with this one
 * @returns {[HTMLElement, () => void]} the card, and what ends it
 */
export const jobCard = (job, started) => {
  const chip = h("span", { class: "chip", role: "status" });
  const open = h("span", { class: "folder" });
  const runs = h("ul", { class: "progress-list" });
  const log = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": `Output of job ${job.number}` });
  const stop = h("button", {
    type: "button",
    onclick: async () => {
      stop.disabled = true;
      stop.textContent = "Stopping …";
      await post(`jobs/${job.number}/stop`, {});
    },
  }, "Stop");
  const resume = h("button", {
    type: "button", hidden: true,
    onclick: async () => {
      resume.disabled = true;
      try {
        started(await post("jobs/resume", { name: job.folder }));
        resume.hidden = true;
      } finally {
        resume.disabled = false;
      }
    },
  }, "Resume");

  /** @param {Job} now */
  const show = (now) => {
    chip.textContent = now.state;
    chip.className = `chip ${now.state}`;
    open.replaceChildren(now.exists ? h("a", { href: address(now.folder) }, now.folder) : now.folder);
    stop.hidden = now.state !== "running";
    resume.hidden = !(now.exists && (now.state === "stopped" || now.state === "failed") && now.runs.some((one) => one.state !== "complete"));
    runs.replaceChildren(...now.runs.map((one) => h("li", {}, h("span", {}, one.name),
      h("progress", { max: 1, value: one.progress ?? 0, "aria-label": `Progress of ${one.name}` }),
      h("span", { class: "quiet" }, stateWords(one), one.loss === null ? "" : `, loss ${one.loss.toFixed(3)}`))));
  };

  const end = follow(`jobs/${job.number}/events`, ({ job: now, after, lines }) => {
    show(now);
    const below = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    if (after === 0) log.textContent = ""; // the first message of a connection holds all lines
    if (lines.length) log.append(lines.map((/** @type {string} */ line) => `${line}\n`).join(""));
    if (below) log.scrollTop = log.scrollHeight;
    if (now.state !== "running") end();
  });
  show(job);
  const card = h("article", { class: "job", "aria-label": `Job ${job.number}` },
    h("div", { class: "head" }, h("h3", {}, `Job ${job.number}: `, open), chip, stop, resume), commandLine(job.line), runs, log);
  return [card, end];
};
