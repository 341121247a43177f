// One folder: its report, kept up to date while it trains.
import { IS_STATIC, here } from "../../lib/address.js";
import { get } from "../../lib/api.js";
import { commandLine, quoted } from "../../lib/command.js";
import { h } from "../../lib/dom.js";
import { encoded, received, stateWords } from "./entries.js";
import { follow, liveReport, oneAtATime } from "./live.js";
import { runLink, trail } from "./parts.js";
import { samplesPanel } from "./samples.js";

/**
 * @param {HTMLElement} root
 * @param {string} name
 * @param {AbortSignal} signal
 */
export const mountDetail = async (root, name, signal) => {
  const loading = h("p", { class: "progress", role: "status" }, "Making the report …");
  const chip = h("span", { class: "chip" });
  const bar = h("progress", { max: 1, "aria-label": "Progress", hidden: true });
  const actions = h("div", { class: "actions" });
  const resume = h("div", { hidden: true });
  const inner = h("p", { class: "quiet inner-runs", hidden: true });
  const report = h("div", { class: "report" });
  const files = h("p", { class: "quiet" });
  const show = liveReport(report);
  root.append(trail(name), h("div", { class: "status-line" }, chip, bar, actions), resume, inner, loading, report, files);

  /** @param {import("./entries.js").Entry} now */
  const showState = (now) => {
    const { progress } = now.runs.find((run) => run.state === "active") ?? now;
    chip.textContent = stateWords(now);
    chip.className = `chip ${now.state || now.kind}`;
    bar.hidden = now.state !== "active" || progress === null;
    bar.value = progress ?? 0;
  };

  let first = true;
  /** @type {{ state: string, progress: number | null, loss: number | null }} */
  let loaded;
  const load = oneAtATime(async () => {
    const found = await get(`runs/${encoded(name)}/report`, signal);
    const entry = received(found.entry);
    loaded = entry;
    showState(entry);
    show(found.markup);
    loading.remove();
    resume.hidden = IS_STATIC || !(entry.state === "stopped" && ["run", "study"].includes(entry.kind));
    inner.hidden = IS_STATIC || entry.runs.length === 0;
    const links = entry.runs.map((one, number) =>
      [number ? ", " : "", runLink(one.name, one.name.slice(name.length + 1))]);
    inner.replaceChildren("Runs: ", ...links.flat());
    if (!first) return;
    first = false;
    if (IS_STATIC) return;
    const asked = entry.kind === "run" || entry.kind === "study";
    resume.replaceChildren("Resume it with:", commandLine(`attnlab resume ${quoted(found.path)}`, "Command that resumes it"));
    actions.append(...(asked ? [h("a", { class: "button", href: here(`/ask?run=${encodeURIComponent(name)}`) }, "Ask this run")] : []));
    if (found.files.length) files.textContent = `Also as a file: ${found.files.join(", ")}`;
    if (entry.kind === "run") {
      const [panel, stop] = samplesPanel([name]);
      report.after(panel);
      signal.addEventListener("abort", stop);
    }
    if (entry.state !== "complete" && asked) watch();
  });

  let seen = false;
  const watch = () => {
    const end = follow(`runs/${encoded(name)}/events`, (now) => {
      const same = now.state === loaded.state && now.progress === loaded.progress && now.loss === loaded.loss;
      if (seen || !same) load();
      seen = true; // the first message tells how things are, which is mostly what the report shows
      if (now.state === "complete") end();
    });
    signal.addEventListener("abort", end);
  };

  await load();
};
