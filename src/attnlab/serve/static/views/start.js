// Start: a study from a form, with its command line; jobs with progress and log.
import { readState, writeState } from "../lib/address.js";
import { get, post } from "../lib/api.js";
import { commandLine } from "../lib/command.js";
import { h } from "../lib/dom.js";
import { controls, showPreset, valuesOf } from "./start/form.js";
import { jobCard } from "./start/job.js";

/** @typedef {import("./start/form.js").Form} Form */
/** @typedef {import("./start/job.js").Job} Job */

export const title = "Start";

const DELAY = 200; // milliseconds after the last change until the command line is asked for

/** @param {Form[]} forms @param {string} chosen */
const picker = (forms, chosen) => h("select", { id: "command" }, forms.map((one) =>
  h("option", { value: one.command, selected: one.command === chosen }, `${one.command}: ${one.help}`)));

/** @param {HTMLElement} root @param {string[]} _ @param {AbortSignal} signal */
export const mount = async (root, _, signal) => {
  root.append(h("h1", {}, "Start"), h("p", { class: "progress", role: "status" }, "Reading the commands …"));
  const [{ forms, presets, at_a_time: most }, jobs] = await Promise.all([get("forms", signal), get("jobs", signal)]);
  const { do: asked = "run recall", name = "", ...rest } = readState();
  /** @type {Form} */
  let form = forms.find((/** @type {Form} */ one) => one.command === asked) ?? forms[0];
  let request = new AbortController();
  let timer = 0;
  /** @type {(() => void)[]} */
  const ends = [];

  const command = picker(forms, form.command);
  const folder = h("input", { name: "folder", value: name, maxlength: 80, placeholder: "the first unused", autocomplete: "off", spellcheck: "false" });
  const about = h("p", {});
  const more = h("div", { class: "quiet" });
  const place = h("div");
  const line = h("div", { class: "line" });
  const problem = h("p", { class: "problem", role: "status" });
  const begin = h("button", { class: "primary" }, "Start");
  const list = h("div", { class: "jobs" });
  const none = h("p", { class: "quiet" }, `None yet. At most ${most} run at a time; they end with the server, and can be resumed.`);

  /** @param {Job} job */
  const add = (job) => {
    if (signal.aborted) return;
    const [card, end] = jobCard(job, add);
    ends.push(end);
    list.prepend(card);
    none.hidden = true;
  };

  const filled = () => ({ command: form.command, values: valuesOf(element, form.options), folder: folder.value.trim() });
  const check = async () => {
    request.abort();
    request = new AbortController();
    const { line: made, problem: wrong } = await post("line", filled(), request.signal);
    problem.textContent = wrong;
    begin.disabled = Boolean(wrong);
    if (made) line.replaceChildren(commandLine(made, "The same in the terminal"));
    line.classList.toggle("old", !made);
  };
  const changed = () => {
    if (signal.aborted) return;
    const { command: chosen, values, folder: named } = filled();
    writeState({ do: chosen, name: named, ...values }, signal);
    const preset = String(values["--preset"] ?? (values["--quick"] ? "quick" : ""));
    showPreset(element, form.options, presets[preset]);
    clearTimeout(timer);
    timer = window.setTimeout(check, DELAY);
  };
  const show = (/** @type {import("./start/form.js").Values} */ values) => {
    about.textContent = form.help;
    more.replaceChildren(...form.more.split("\n\n").filter(Boolean).map((text) => h("p", {}, text)));
    place.replaceChildren(...controls(form, values));
    changed();
  };
  const element = h("form", {
    class: "study",
    oninput: changed,
    onsubmit: async (/** @type {Event} */ event) => {
      event.preventDefault();
      begin.disabled = true;
      try {
        add(await post("jobs", filled()));
        folder.value = "";
      } finally {
        begin.disabled = false;
        changed();
      }
    },
  }, h("label", {}, "Command", command), about, more, place, h("label", {}, "Name of the new folder", folder),
    h("div", { class: "ready" }, line, h("div", { class: "go" }, begin, problem)));
  command.addEventListener("change", () => {
    form = forms.find((/** @type {Form} */ one) => one.command === command.value) ?? form;
    show(valuesOf(element, form.options));
  });

  const suggest = ["preset", "mechanism"].map((kind) => h("datalist", { id: `suggest-${kind}` }));
  suggest[0].append(...Object.keys(presets).map((one) => h("option", { value: one })));
  get("suggestions", signal).then(({ mechanism }) => suggest[1].append(...mechanism.map((/** @type {string} */ one) => h("option", { value: one }))));

  root.querySelector(".progress")?.remove();
  root.append(h("div", { class: "split" }, element, h("section", { "aria-labelledby": "jobs" }, h("h2", { id: "jobs" }, "Jobs"), none, list)), ...suggest);
  for (const job of [...jobs].reverse()) add(job);
  show(rest);
  return () => {
    clearTimeout(timer);
    request.abort();
    ends.forEach((end) => end());
  };
};
