// The table of all runs, with search, filters and sorting; it is kept up to date by events.
import { IS_STATIC, here, readState, writeState } from "../../lib/address.js";
import { ApiError, get } from "../../lib/api.js";
import { firstRun } from "../../lib/command.js";
import { h } from "../../lib/dom.js";
import { save } from "../../lib/report.js";
import { asCsv, asLatex } from "../../lib/tables.js";
import { address, amount, arrange, choose, conditions, duration, exported, figure, last, moment, received, stateWords } from "./entries.js";
import { follow, oneAtATime } from "./live.js";

/** @typedef {import("./entries.js").Entry} Entry */

/** @type {[string, string, boolean][]}  column, heading, and whether it holds numbers */
const COLUMNS = [
  ["name", "Name", false], ["what", "What", false], ["state", "State", false], ["result", "Result", true], ["mechanism", "Mechanism", false],
  ["preset", "Preset", false], ["seed", "Seed", true], ["tokens", "Tokens", true], ["seconds", "Time", true], ["when", "When", false],
];
const DESCENDING_FIRST = ["result", "tokens", "seconds", "when"];
const COMPARABLE = ["run", "study"];

/** @param {Entry} entry */
const cells = (entry) => ({
  what: entry.what,
  mechanism: (entry.mechanism ?? "").split(",").map((one) => last(one.trim())).join(", "),
  preset: entry.preset ?? "",
  seed: entry.seed ?? "",
  result: figure(entry),
  tokens: amount(entry.tokens),
  seconds: duration(entry.seconds),
  when: moment(entry.when),
});

/**
 * @param {HTMLElement} root
 * @param {AbortSignal} signal
 */
export const mountList = async (root, signal) => {
  const state = readState();
  /** @type {Entry[]} */
  let entries = [];
  let place = "";
  let sort = state.sort ?? "when";
  let descending = state.sort ? state.down === "1" : true;
  const open = new Set((state.open ?? "").split("|").filter(Boolean));
  /** @type {Set<string>} */
  const chosen = new Set();

  const search = h("input", { type: "search", value: state.q ?? "", placeholder: "name, mechanism, note …", oninput: () => show() });
  const kind = h("select", { onchange: () => show() });
  const stateChoice = h("select", { onchange: () => show() },
    [["", "all"], ["active", "training"], ["stopped", "stopped"], ["complete", "complete"]].map(([value, text]) =>
      h("option", { value, selected: value === (state.state ?? "") }, text)));
  const filter = h("input", { value: state.filter ?? "", placeholder: "train.lr>=0.001 mechanism=dot", spellcheck: "false", autocapitalize: "off", "aria-describedby": "filter-problem" });
  const problem = h("p", { class: "problem", id: "filter-problem", role: "alert" });
  const loading = h("p", { class: "progress", role: "status" }, "Reading the folders …");
  const count = h("div", { class: "quiet count", role: "status" });
  const compare = h("a", { class: "button", href: here("/runs") });
  const clear = h("button", { type: "button", onclick: () => { chosen.clear(); show(); } }, "Clear selection");
  const bar = h("div", { class: "chosen", hidden: true, role: "group", "aria-label": "Chosen runs" }, compare, clear);
  const head = h("tr");
  const body = h("tbody");

  const query = () => ({
    q: search.value.trim(), kind: kind.value, state: stateChoice.value, filter: filter.value.trim(),
    ...(sort === "when" && descending ? {} : { sort, down: descending ? "1" : "" }), open: [...open].join("|"),
  });

  /** @param {Entry} entry @param {number} depth @returns {HTMLElement[]} */
  const rows = (entry, depth) => {
    const shown = cells(entry);
    const folded = entry.runs.length > 0;
    const opened = folded && open.has(entry.name);
    const toggle = () => {
      opened ? open.delete(entry.name) : open.add(entry.name);
      show();
      /** @type {HTMLElement | null} */ (body.querySelector(`tr[data-name="${CSS.escape(entry.name)}"] .fold`))?.focus();
    };
    const name = depth ? entry.name.split("/").slice(1).join("/") : last(entry.name);
    const heading = h("th", { scope: "row" }, h("div", { class: "name" },
      COMPARABLE.includes(entry.kind) && !IS_STATIC
        ? h("input", {
          type: "checkbox", checked: chosen.has(entry.name), "aria-label": `Choose ${entry.name}`,
          onchange: (/** @type {any} */ event) => { event.target.checked ? chosen.add(entry.name) : chosen.delete(entry.name); showBar(); },
        })
        : h("span", { class: "gap" }),
      folded
        ? h("button", { type: "button", class: "fold", "aria-expanded": String(opened), "aria-label": `Runs of ${entry.name}`, onclick: toggle }, opened ? "▾" : "▸")
        : h("span", { class: "gap" }),
      entry.kind === "link" ? h("span", { class: "entry" }, name) : h("a", { class: "entry", href: address(entry.name) }, name),
      folded && h("span", { class: "quiet inside" }, `${entry.runs.length} runs`)));
    const note = entry.state === "complete" && entry.kind !== "output" ? "" : entry.note;
    const condition = h("td", { class: "in-state" }, h("span", { class: `chip ${entry.state || entry.kind}` }, stateWords(entry)),
      note && h("span", { class: "note" }, note));
    const rest = COLUMNS.slice(1).map(([column, , number]) =>
      column === "state" ? condition : h("td", { class: `in-${column}${number ? " number" : ""}` }, /** @type {any} */ (shown)[column]));
    const row = h("tr", { "data-name": entry.name, class: depth ? "inner" : "" }, heading, rest);
    return [row, ...(opened ? entry.runs.flatMap((one) => rows(one, depth + 1)) : [])];
  };

  const showBar = () => {
    bar.hidden = chosen.size === 0;
    const named = [...chosen].map((name) => `with=${encodeURIComponent(name)}`).join("&");
    compare.setAttribute("href", here(`/runs?${named}`));
    compare.textContent = chosen.size === 1 ? "Show curves and samples" : `Compare ${chosen.size} side by side`;
  };

  const showHead = () => head.replaceChildren(...COLUMNS.map(([column, title, number]) =>
    h("th", {
      scope: "col", class: `in-${column}${number ? " number" : ""}`,
      "aria-sort": sort === column ? (descending ? "descending" : "ascending") : "none",
    }, h("button", {
      type: "button",
      onclick: () => {
        descending = sort === column ? !descending : DESCENDING_FIRST.includes(column);
        sort = column;
        show();
        /** @type {HTMLElement | null} */ (head.querySelector(`.in-${column} button`))?.focus();
      },
    }, title))));

  const wantedEntries = () => arrange(choose(entries, { search: search.value, kind: kind.value, state: stateChoice.value }), sort, descending);
  const saveCsv = () => save(new Blob([asCsv(exported(wantedEntries()))], { type: "text/csv" }), "runs.csv");
  const saveLatex = () => save(new Blob([asLatex(exported(wantedEntries()))], { type: "text/x-tex" }), "runs.tex");

  const show = () => {
    writeState(query(), signal);
    const wanted = wantedEntries();
    showHead();
    body.replaceChildren(...wanted.flatMap((entry) => rows(entry, 0)));
    showBar();
    const all = entries.length === 1 ? "1 folder" : `${entries.length} folders`;
    if (wanted.length) count.textContent = wanted.length === entries.length ? `${all}${place && ` in ${place}`}` : `${wanted.length} of ${all}${place && ` in ${place}`}`;
    else if (entries.length || filter.value) count.textContent = "Nothing meets the conditions.";
    else if (IS_STATIC) count.textContent = "This site was written without reports of runs.";
    else count.replaceChildren(`No runs in ${place} yet. This command trains one:`, firstRun(place));
  };

  const load = oneAtATime(async () => {
    const asked = conditions(filter.value).map((one) => `filter=${encodeURIComponent(one)}`).join("&");
    let found;
    try {
      found = await get(`runs${asked && `?${asked}`}`, signal);
    } catch (error) {
      if (!(error instanceof ApiError && error.status === 422)) throw error;
      problem.textContent = error.message; // of the conditions: what was listed stays until they are corrected
      return;
    } finally {
      loading.remove();
    }
    problem.textContent = "";
    entries = found.entries.map(received);
    place = found.root;
    const kinds = [...new Set(entries.map((entry) => entry.kind))].sort();
    const now = kind.value || state.kind || "";
    kind.replaceChildren(h("option", { value: "" }, "all"), ...kinds.map((one) => h("option", { value: one, selected: one === now }, one)));
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    const row = active?.closest("tr")?.dataset.name;
    const inside = row === undefined ? -1 : [...(active?.closest("tr")?.querySelectorAll("a, button, input") ?? [])].indexOf(/** @type {Element} */ (active));
    show();
    if (row !== undefined && inside >= 0) {
      const again = body.querySelector(`tr[data-name="${CSS.escape(row)}"]`)?.querySelectorAll("a, button, input")[inside];
      if (again instanceof HTMLElement) again.focus({ preventScroll: true });
    }
  });
  filter.addEventListener("change", () => load());

  root.append(
    h("h1", {}, "Runs"),
    h("form", { class: "controls", role: "search", onsubmit: (/** @type {Event} */ event) => { event.preventDefault(); load(); } },
      h("label", { class: "wide" }, "Search", search), h("label", {}, "Kind", kind), h("label", {}, "State", stateChoice),
      !IS_STATIC && h("label", { class: "wide" }, "Conditions on columns and settings", filter)),
    problem, bar, loading, count,
    h("div", { class: "scroll", role: "region", "aria-label": "Runs", tabindex: "0" }, h("table", { class: "list no-export" }, h("thead", {}, head), body)),
    h("div", { class: "export", role: "group", "aria-label": "Export: Runs" }, h("button", { type: "button", onclick: saveCsv }, "CSV"), h("button", { type: "button", onclick: saveLatex }, "LaTeX")));

  if (!IS_STATIC) signal.addEventListener("abort", follow("events/runs", load));
  await load();
};
