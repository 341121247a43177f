// The view "design": attention in two planes with a solver; below them all numbers, a noise experiment and answer sheets.
import { readState, writeState } from "../lib/address.js";
import { copyButton } from "../lib/command.js";
import { h } from "../lib/dom.js";
import { gloss } from "../lib/glossary.js";
import { addExports, chartExports } from "../lib/report.js";
import { shown } from "./design/format.js";
import { Noise } from "./design/noise.js";
import { Numbers } from "./design/numbers.js";
import { Playground } from "./design/playground.js";
import { Proofs } from "./design/proofs.js";
import { Sheet } from "./design/sheet.js";
import { Solver } from "./design/solver.js";
import { MOST_DIMENSIONS, MOST_POINTS, PRESETS, configurationOf, presetOf, readConfiguration, readQuestion, resized, samePoints, writeConfiguration } from "./design/state.js";

/** @typedef {import("./design/state.js").Configuration} Configuration */

export const title = "Design";

/** The controls of the query scale: a slider in powers of ten, and a number. @param {Playground} playground */
const scaleControl = (playground) => {
  const problem = h("span", { class: "problem", role: "alert" });
  const slider = h("input", {
    type: "range", min: -1, max: 3, step: 0.01, "aria-label": "Query scale, slider",
    oninput: () => playground.rescale(Number((10 ** Number(slider.value)).toPrecision(2))),
  });
  const exact = h("input", { type: "text", inputmode: "decimal", size: 5, "aria-label": "Query scale", oninput: () => {
    const wanted = Number(exact.value.replace(",", "."));
    const fine = wanted > 0 && wanted <= 1e6;
    problem.textContent = fine ? "" : "The query scale must be a positive number, at most 1e6.";
    if (fine) playground.rescale(wanted);
  } });
  /** @param {number} scale */
  const show = (scale) => {
    slider.value = String(Math.log10(scale));
    slider.setAttribute("aria-valuetext", shown(scale));
    if (document.activeElement !== exact) exact.value = String(Number(scale.toPrecision(4)));
  };
  const name = h("span", { class: "scale-name", "aria-hidden": "true" }, "query scale: long queries make sharp weights");
  return { show, element: h("div", { class: "scale", role: "group", "aria-label": "Query scale" }, name, h("span", { class: "scale-inputs" }, slider, exact), problem) };
};

/** The table of all numbers, with the dimensions. @param {Playground} playground */
const numbersPanel = (playground) => {
  const numbers = new Numbers(() => playground.refresh());
  const sizes = Array.from({ length: MOST_DIMENSIONS }, (_, i) => i + 1);
  const resize = () => playground.set(resized(playground.configuration, Number(width.value), Number(height.value)));
  const width = h("select", { onchange: resize }, sizes.map((size) => h("option", { value: size }, size)));
  const height = h("select", { onchange: resize }, sizes.map((size) => h("option", { value: size }, size)));
  const sqrt = h("input", { type: "checkbox", onchange: () => {
    playground.configuration.scaled = sqrt.checked;
    playground.refresh();
  } });
  /** @param {Configuration} configuration */
  const show = (configuration) => {
    width.value = String(configuration.direction.length);
    height.value = String(configuration.target.length);
    sqrt.checked = configuration.scaled;
    numbers.show(configuration, playground.withTarget);
  };
  addExports(numbers.element);
  const controls = h(
    "div",
    { class: "controls" },
    h("label", {}, "dimensions of keys", width),
    h("label", {}, "dimensions of values", height),
    h("label", { class: "inline" }, sqrt, h("span", {}, "divide scores by √d")),
  );
  return { show, element: h("div", {}, controls, numbers.element) };
};

/**
 * Tabs, which the arrow keys move through as well.
 * @param {string} label  of the list of tabs
 * @param {[string, string, HTMLElement][]} parts  name, title, panel
 * @param {string} first  the name of the one to open
 * @param {(name: string) => void} opened
 */
const tabs = (label, parts, first, opened) => {
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
  /** @param {KeyboardEvent} event */
  const key = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    const to = (buttons.findIndex((button) => button === document.activeElement) + step + parts.length) % parts.length;
    open(to);
    buttons[to].focus();
  };
  open(Math.max(0, parts.findIndex(([name]) => name === first)));
  return h("div", { class: "tabs" }, h("div", { role: "tablist", "aria-label": label, onkeydown: key }, buttons), panels);
};

/** @param {HTMLElement} root @param {string[]} _ @param {AbortSignal} signal */
export const mount = (root, _, signal) => {
  const state = readState();
  const given = readConfiguration(state);
  const preset = PRESETS.find((one) => one.name === state.preset) ?? PRESETS[0];
  const start = given ?? configurationOf(preset);
  let tab = state.tab ?? "numbers";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let later;
  let ready = false;

  const save = () => {
    clearTimeout(later);
    const known = presetOf(playground.configuration);
    const drawn = known ? { preset: known === PRESETS[0] ? "" : known.name } : writeConfiguration(playground.configuration);
    writeState({ ...drawn, ...solver.state, ...noise.state, ...proofs.state, ...sheet.state, tab: tab === "numbers" ? "" : tab }, signal);
  };
  const saveSoon = () => {
    clearTimeout(later);
    if (ready) later = setTimeout(save, 250); // browsers limit how often an address may change
  };

  const show = () => {
    const { configuration } = playground;
    const score = configuration.scaled ? "q·k/√d, where d is its number of coordinates" : "q·k";
    if (explain.dataset.score !== score) {
      explain.dataset.score = score;
      explain.textContent = `Each key k gets the score ${score}; softmax turns scores into weights, and the output is the mean of the values with these weights. Drag the query.`;
      gloss(explain, true);
    }
    scale.show(configuration.scale);
    numbers.show(configuration);
    add.disabled = configuration.keys.length >= MOST_POINTS;
    if (solver.built !== configuration.keys.length) solver.build();
    solver.compare();
    const drawn = PRESETS.find((one) => samePoints(one.configuration, configuration));
    presets.value = drawn?.name ?? "";
    note.textContent = drawn?.note ?? "";
  };
  const playground = new Playground(start, (settled) => {
    if (!settled || !ready) return;
    show();
    saveSoon();
  });
  const scale = scaleControl(playground);
  const numbers = numbersPanel(playground);
  const solver = new Solver(playground, readQuestion(state, start.keys.length), saveSoon);
  const noise = new Noise(state, saveSoon);
  const proofs = new Proofs(state, saveSoon);
  const sheet = new Sheet(playground, state, saveSoon);
  playground.side.append(solver.element);
  playground.element.append(solver.answer);
  for (const { plane } of [playground.keys, playground.values]) plane.element.append(chartExports(plane.svg, plane.title));
  addExports(playground.weights.element);

  const explain = h("p", { class: "explain" });
  const note = h("p", { class: "preset-note" });
  const presets = h(
    "select",
    {
      onchange: () => {
        const chosen = PRESETS.find((one) => one.name === presets.value);
        if (!chosen) return;
        solver.forget();
        playground.set(configurationOf(chosen));
      },
    },
    h("option", { value: "", disabled: true }, "Your points"),
    PRESETS.map((one) => h("option", { value: one.name }, one.title)),
  );
  const add = h("button", { type: "button", onclick: () => playground.add() }, "Add a point");
  const copy = copyButton("Copy link", () => {
    save();
    return location.href;
  });

  root.append(
    h("h1", {}, "Design attention by hand"),
    explain,
    h("div", { class: "controls top" }, h("label", {}, "start from", presets), scale.element, h("span", { class: "push" }), add, copy),
    note,
    sheet.current,
    playground.element,
    tabs("Numbers, noise, proofs and sheets", [["numbers", "All numbers", numbers.element], ["noise", "Noise on a key", noise.element], ["proofs", "Proofs", proofs.element], ["sheet", "Answer a sheet", sheet.element]], tab, (name) => {
      tab = name;
      if (name === "sheet") sheet.open();
      if (name === "proofs" && !proofs.choice.options.length) proofs.show();
      if (name === "noise" && !noise.charts.length) noise.run();
      saveSoon();
    }),
  );
  show();
  gloss(playground.element, true);
  ready = true;
  if (state.asked) solver.solve(false);
  return () => {
    ready = false;
    clearTimeout(later);
    cancelAnimationFrame(playground.gliding);
    for (const part of [solver, noise, proofs, sheet]) part.end();
  };
};
