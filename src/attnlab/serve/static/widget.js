// The planes and the solver of the view "design" as a widget of a notebook. Keys, values and query belong to both sides;
// the solver runs in the kernel, which answers requests by their number.
import { ApiError, sendThrough } from "./lib/api.js";
import { niceAbove } from "./lib/attention.js";
import { h } from "./lib/dom.js";
import { shown } from "./views/design/format.js";
import { Playground } from "./views/design/playground.js";
import { Solver } from "./views/design/solver.js";
import { MOST_POINTS, queryOf, splitQuery } from "./views/design/state.js";

/** @typedef {import("./views/design/state.js").Configuration} Configuration */
/**
 * @typedef {object} Model  what anywidget gives
 * @property {(name: string) => any} get
 * @property {(name: string, value: any) => void} set
 * @property {() => void} save_changes
 * @property {(content: any) => void} send
 * @property {(event: string, act: (content?: any) => void) => void} on
 * @property {(event: string, act: (content?: any) => void) => void} off
 */

let asked = 0;

/** Requests to the kernel. @param {Model} model */
const kernel = (model) => {
  /** @type {Map<number, { resolve: (value: any) => void, reject: (error: Error) => void }>} */
  const waiting = new Map();
  model.on("msg:custom", (answer) => {
    const one = waiting.get(answer.number);
    waiting.delete(answer.number);
    answer.error ? one?.reject(new ApiError(answer.error, 422)) : one?.resolve(answer.value);
  });
  sendThrough((path, body) => new Promise((resolve, reject) => {
    const number = ++asked;
    waiting.set(number, { resolve, reject });
    model.send({ number, path, body });
  }));
};

/** What the planes show of a model. @param {Model} model @returns {Configuration} */
const configurationOf = (model) => {
  /** @type {number[][]} */
  const keys = model.get("key_points").map((/** @type {number[]} */ row) => [...row]);
  /** @type {number[][]} */
  const values = model.get("value_points").map((/** @type {number[]} */ row) => [...row]);
  const { direction, scale } = splitQuery(model.get("query"), niceAbove(Math.max(...keys.flat().map(Math.abs)) || 1));
  const target = values[0].map((_, place) => values.reduce((sum, row) => sum + row[place], 0) / values.length);
  return { keys, values, direction, scale, target, scaled: model.get("scaled") };
};

/** @param {{ model: Model, el: HTMLElement }} given */
const render = ({ model, el }) => {
  const root = el.shadowRoot ?? el.attachShadow({ mode: "open" }); // the styles of notebook and widget stay apart
  kernel(model);
  let own = false; // whether a change comes from here
  const playground = new Playground(configurationOf(model), (settled) => {
    if (!settled || !solver) return;
    const { keys, values, scale: length } = playground.configuration;
    slider.value = String(Math.log10(length));
    slider.setAttribute("aria-valuetext", shown(length));
    add.disabled = keys.length >= MOST_POINTS;
    if (solver.built !== keys.length) solver.build();
    own = true;
    model.set("key_points", keys.map((row) => [...row]));
    model.set("value_points", values.map((row) => [...row]));
    model.set("query", queryOf(playground.configuration));
    model.save_changes();
    own = false;
  });
  const slider = h("input", {
    type: "range", min: -1, max: 3, step: 0.01,
    value: Math.log10(playground.configuration.scale),
    oninput: () => playground.rescale(Number((10 ** Number(slider.value)).toPrecision(2))),
  });
  const add = h("button", { type: "button", onclick: () => playground.add() }, "Add a point");
  /** @type {Solver | undefined} */
  let solver;
  solver = new Solver(playground, { task: "select", index: 0, indices: [0], weights: "", tolerance: 0.01 }, () => {});
  playground.side.append(solver.element);
  playground.element.append(solver.answer);
  const show = () => {
    if (!own) playground.set(configurationOf(model));
  };
  const names = ["change:key_points", "change:value_points", "change:query", "change:scaled"];
  names.forEach((name) => model.on(name, show));
  root.replaceChildren(
    h("style", {}, model.get("_style")),
    h("div", { class: "page" }, h("div", { class: "view design" },
      h("div", { class: "controls top" }, h("label", {}, "query scale", slider), add), playground.element)),
  );
  return () => {
    names.forEach((name) => model.off(name, show));
    solver?.end();
  };
};

export default { render };
