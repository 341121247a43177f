// The view "design": attention in two planes, with a solver, a noise experiment and answer sheets below.
import { readState, writeState } from "../lib/address.js";
import { h } from "../lib/dom.js";
import { copyButton } from "./design/copy.js";
import { shown } from "./design/format.js";
import { Noise } from "./design/noise.js";
import { Numbers } from "./design/numbers.js";
import { Playground } from "./design/playground.js";
import { Sheet } from "./design/sheet.js";
import { Solver } from "./design/solver.js";
import {
  MOST_DIMENSIONS, MOST_POINTS, PRESETS, configurationOf, readConfiguration, readQuestion, resized, writeConfiguration,
} from "./design/state.js";

export const title = "Design";

const SCALES = /** @type {const} */ ([-1, 3]); // powers of ten of the slider

/**
 * Tabs, moved through with the arrow keys as well.
 * @param {[string, string, HTMLElement][]} parts  name, title, panel
 * @param {string} first
 * @param {(name: string) => void} opened
 */
const tabs = (parts, first, opened) => {
  const buttons = parts.map(([name, words], i) =>
    h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": `panel-${name}`, onclick: () => open(i) }, words));
  const panels = parts.map(([name, , panel]) => h("section", { role: "tabpanel", id: `panel-${name}`, "aria-labelledby": `tab-${name}` }, panel));
  /** @param {number} place */
  const open = (place) => {
    buttons.forEach((button, i) => {
      button.setAttribute("aria-selected", String(i === place));
      button.tabIndex = i === place ? 0 : -1;
      panels[i].hidden = i !== place;
    });
    opened(parts[place][0]);
  };
  const list = h("div", { role: "tablist", "aria-label": "What to do", onkeydown: (/** @type {KeyboardEvent} */ event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const to = (buttons.findIndex((button) => button === document.activeElement) + step + parts.length) % parts.length;
    open(to);
    buttons[to].focus();
  } }, buttons);
  open(Math.max(0, parts.findIndex(([name]) => name === first)));
  return h("div", { class: "tabs" }, list, panels);
};

/** @param {number} most @param {string} words @param {(size: number) => void} change */
const dimensions = (most, words, change) => {
  const choice = h("select", { onchange: () => change(Number(choice.value)) }, Array.from({ length: most }, (_, i) => h("option", { value: i + 1 }, String(i + 1))));
  return { choice, label: h("label", {}, words, choice) };
};

/** @param {HTMLElement} root */
export const mount = (root) => {
  const state = readState();
  const given = readConfiguration(state);
  const preset = PRESETS.find((one) => one.name === state.preset) ?? PRESETS[0];
  const start = given ?? configurationOf(preset);
  let tab = ["noise", "sheet"].includes(state.tab) ? state.tab : "solver";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  let ready = false;

  const save = () => {
    clearTimeout(later);
    later = undefined;
    if (!ready) return;
    writeState({ ...writeConfiguration(playground.configuration), ...solver.state, ...noise.state, ...sheet.state, tab: tab === "solver" ? "" : tab });
  };
  const saveSoon = () => {
    if (!ready) return;
    clearTimeout(later);
    later = setTimeout(save, 250); // browsers limit how often an address may change
  };

  // What depends on the configuration, apart from the planes themselves.
  /** @param {boolean} settled */
  const changed = (settled) => {
    if (!settled) return;
    const { keys, direction, target, scale, scaled } = playground.configuration;
    slider.value = String(Math.log10(scale));
    slider.setAttribute("aria-valuetext", shown(scale));
    if (document.activeElement !== exact) exact.value = shown(scale).replace("−", "-");
    sqrt.checked = scaled;
    widths.choice.value = String(direction.length);
    heights.choice.value = String(target.length);
    add.disabled = keys.length >= MOST_POINTS;
    numbers.show(playground.configuration);
    if (solver.built !== keys.length) solver.build();
    saveSoon();
  };

  const playground = new Playground(start, (settled) => { if (ready) changed(settled); });
  const numbers = new Numbers(() => playground.refresh());
  const solver = new Solver(playground, readQuestion(state, start.keys.length), saveSoon);
  const noise = new Noise(state, saveSoon);
  const sheet = new Sheet(playground, state, saveSoon);

  const note = h("p", { class: "preset-note" }, given ? "" : preset.note);
  const presets = h(
    "select",
    {
      onchange: () => {
        const chosen = PRESETS.find((one) => one.name === presets.value);
        if (!chosen) return;
        note.textContent = chosen.note;
        solver.answer.replaceChildren();
        playground.set(configurationOf(chosen));
      },
    },
    given && h("option", { value: "" }, "From the link"),
    PRESETS.map((one) => h("option", { value: one.name, selected: !given && one === preset }, one.title)),
  );

  // The query scale: a slider in powers of ten, and a number.
  const slider = h("input", {
    type: "range", min: SCALES[0], max: SCALES[1], step: 0.01, "aria-label": "Query scale, slider",
    oninput: () => rescale(Number((10 ** Number(slider.value)).toPrecision(2))),
  });
  const exact = h("input", { type: "text", inputmode: "decimal", size: 5, "aria-label": "Query scale", oninput: () => {
    const wanted = Number(exact.value.replace(",", "."));
    const fine = wanted > 0 && wanted <= 1e6;
    problem.textContent = fine ? "" : "The query scale must be a positive number, at most 1e6.";
    if (fine) rescale(wanted);
  } });
  /** @param {number} scale */
  const rescale = (scale) => playground.rescale(scale);
  const problem = h("p", { class: "problem", role: "alert" });

  const sqrt = h("input", { type: "checkbox", onchange: () => {
    playground.configuration.scaled = sqrt.checked;
    playground.refresh();
  } });
  const widths = dimensions(MOST_DIMENSIONS, "dimensions of keys", (size) => resize(size, playground.configuration.target.length));
  const heights = dimensions(MOST_DIMENSIONS, "of values", (size) => resize(playground.configuration.direction.length, size));
  /** @param {number} width @param {number} height */
  const resize = (width, height) => {
    table.open ||= Math.max(width, height) > 2;
    playground.set(resized(playground.configuration, width, height));
  };
  const add = h("button", { type: "button", onclick: () => playground.add() }, "Add a point");
  const table = h("details", { open: Math.max(start.direction.length, start.target.length) > 2 }, h("summary", {}, "Table of all numbers"), numbers.element);

  root.append(
    h("h1", {}, "Design attention by hand"),
    h(
      "p",
      { class: "explain" },
      "Each key k gets the score q·k. Softmax turns the scores into weights, and the output is the mean of the values with these weights. Drag the query and watch.",
    ),
    h(
      "div",
      { class: "controls top" },
      h("label", {}, "start from", presets),
      h("div", { class: "scale", role: "group", "aria-label": "Query scale" }, h("span", { class: "scale-name", "aria-hidden": "true" }, "query scale (long queries make sharp weights)"), h("span", { class: "scale-inputs" }, slider, exact)),
      h("span", { class: "push" }),
      add,
      copyButton("Copy link", () => { save(); return location.href; }),
    ),
    note,
    problem,
    playground.element,
    h(
      "div",
      { class: "controls under" },
      widths.label,
      heights.label,
      h("label", { class: "inline" }, sqrt, h("span", {}, "divide scores by √d")),
    ),
    table,
    tabs([["solver", "Ask the solver", solver.element], ["noise", "Noise on a key", noise.element], ["sheet", "Answer a sheet", sheet.element]], tab, (name) => {
      tab = name;
      if (name === "sheet") sheet.open();
      if (name === "noise" && !noise.charts.length) noise.run();
      saveSoon();
    }),
  );
  ready = true;
  changed(true);
  return () => {
    save();
    ready = false;
    clearTimeout(later);
    cancelAnimationFrame(playground.gliding);
    for (const part of [solver, noise, sheet]) part.end();
  };
};
