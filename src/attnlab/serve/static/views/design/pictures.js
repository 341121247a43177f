// What the two planes show: keys with the query and its margin, values with the output and their hull.
import { hull } from "../../lib/attention.js";
import { svg } from "../../lib/dom.js";
import { named, shown } from "./format.js";
import { Plane } from "./plane.js";

/** @typedef {import("./plane.js").Pair} Pair */
/** @typedef {import("./plane.js").Handle} Handle */
/** @typedef {import("./plane.js").Moves} Moves */
/** @typedef {import("./state.js").Configuration} Configuration */
/** @typedef {import("../../lib/attention.js").Attention} Attention */
/** @typedef {import("../../lib/attention.js").Vector} Vector */

/** @param {number} i */
const series = (i) => `series p${(i % 6) + 1}`;

/** @param {string} text @param {number} [x] @param {number} [y] */
const label = (text, x = 11, y = -9) => svg("text", { class: "name", x, y }, text);

/** The radius of the halo of a point, whose area grows with its weight. @param {number} weight */
const halo = (weight) => (7 + 33 * Math.sqrt(weight)).toFixed(2);

/** The two coordinates of a vector that a plane shows. @param {Vector} point @param {Pair} axes @returns {Pair} */
export const pair = (point, axes) => [point[axes[0]], point[axes[1]] ?? 0];

/** Changes the two coordinates that a plane shows. @param {Vector} point @param {Pair} axes @param {Pair} to */
export const put = (point, axes, to) => {
  point[axes[0]] = to[0];
  if (axes[1] < point.length) point[axes[1]] = to[1];
};

/** Points with halos and their hull: what both planes have. */
class Picture {
  /** @param {string} title @param {string} words  what the plane shows @param {Moves} moves */
  constructor(title, words, moves) {
    this.plane = new Plane(title, words, moves);
    /** @type {Pair} */
    this.axes = [0, 1];
    this.hull = svg("polygon", { class: "hull" });
    /** @type {SVGCircleElement[]} */
    this.halos = [];
    /** @type {Handle[]} */
    this.handles = [];
  }

  /**
   * Makes the points anew.
   * @param {number} n
   * @param {number} dimensions
   * @param {string} word  such as Key
   * @param {string} letter
   */
  makePoints(n, dimensions, word, letter) {
    if (Math.max(...this.axes) >= dimensions) this.axes = [0, 1];
    this.plane.flat = dimensions === 1;
    this.plane.clear();
    this.halos = Array.from({ length: n }, (_, i) => svg("circle", { class: `halo ${series(i)}` }));
    this.handles = this.halos.map((_, i) =>
      this.plane.handle(`${word} ${i}`, series(i), svg("circle", { class: "dot", r: 7 }), label(named(letter, i))));
  }

  /** @param {Vector[]} vectors @param {Vector} weights */
  drawPoints(vectors, weights) {
    const points = vectors.map((vector) => pair(vector, this.axes));
    points.forEach((point, i) => {
      this.plane.put(this.handles[i], point);
      this.plane.place(this.halos[i], point);
      this.halos[i].setAttribute("r", halo(weights[i]));
    });
    this.hull.setAttribute("points", this.plane.outline(hull(points).map((i) => points[i])));
    return points;
  }
}

export class KeyPicture extends Picture {
  /** @param {Moves} moves */
  constructor(moves) {
    super("Keys and query", "Plane of keys and query", moves);
    this.band = svg("polygon", { class: "band" });
    this.edges = [svg("line", { class: "edge" }), svg("line", { class: "edge" })];
    this.shaft = svg("line", { class: "query" });
    this.queryName = label("q", 13, 5);
  }

  /** @param {Configuration} configuration */
  build({ keys, direction }) {
    this.makePoints(keys.length, direction.length, "Key", "k");
    this.plane.below.replaceChildren(this.hull, this.band, ...this.edges, ...this.halos, this.shaft);
    this.query = this.plane.handle("Query", "query", svg("circle", { class: "ring", r: 9 }), svg("circle", { class: "core", r: 3 }), this.queryName);
  }

  /** @param {Configuration} configuration @param {Attention} found */
  draw({ keys, direction, scale }, { weights, leader, next }) {
    const points = this.drawPoints(keys, weights), tip = pair(direction, this.axes);
    if (this.query) this.plane.put(this.query, tip);
    this.plane.connect(this.shaft, [0, 0], tip);
    this.queryName.textContent = scale === 1 ? "q" : `q ÷ ${shown(scale)}`;
    const lengthwise = direction.length <= 2 && next >= 0 && Math.hypot(...tip) > 0;
    for (const mark of [this.band, ...this.edges]) mark.toggleAttribute("hidden", !lengthwise);
    if (lengthwise) this.#drawBand(tip, points[leader], points[next]);
  }

  /** The band across the query from the leading key to the next. @param {Pair} tip @param {Pair} leader @param {Pair} next */
  #drawBand(tip, leader, next) {
    const far = (4 * this.plane.range) / Math.hypot(...tip);
    const [x, y] = [-tip[1] * far, tip[0] * far];
    const corners = [leader, next].map((at) => /** @type {Pair[]} */ ([[at[0] - x, at[1] - y], [at[0] + x, at[1] + y]]));
    this.edges.forEach((edge, i) => this.plane.connect(edge, corners[i][0], corners[i][1]));
    this.band.setAttribute("points", this.plane.outline([...corners[0], corners[1][1], corners[1][0]]));
  }

  /**
   * Draws that a key is a mean of others, as a proof; nothing without one.
   * @param {Configuration} configuration
   * @param {{ index: number, weights: number[] }} [combination]
   */
  prove({ keys }, combination) {
    const inside = combination ? pair(keys[combination.index], this.axes) : null;
    const marks = (combination?.weights ?? []).flatMap((weight, i) => {
      if (!weight || !inside) return [];
      const from = pair(keys[i], this.axes), line = svg("line", { class: "proof" });
      const words = svg("text", { class: "proof-weight", "text-anchor": "middle" }, shown(weight));
      this.plane.connect(line, from, inside);
      this.plane.place(words, [(from[0] + inside[0]) / 2, (from[1] + inside[1]) / 2]);
      return [line, words];
    });
    this.plane.above.replaceChildren(...marks);
  }
}

export class ValuePicture extends Picture {
  /** @param {Moves} moves */
  constructor(moves) {
    super("Values and output", "Plane of values and output", moves);
    this.outputName = label("output", 12, 0);
    this.output = svg("g", { class: "output", "aria-hidden": "true" }, svg("path", { d: "M0-9 9 0 0 9-9 0Z" }), this.outputName);
    /** @type {SVGLineElement[]} */
    this.rays = [];
  }

  /** @param {Configuration} configuration @param {boolean} withTarget */
  build({ values, target }, withTarget) {
    this.makePoints(values.length, target.length, "Value", "v");
    this.rays = values.map((_, i) => svg("line", { class: `ray ${series(i)}` }));
    this.plane.below.replaceChildren(this.hull, ...this.halos, ...this.rays);
    this.target = withTarget
      ? this.plane.handle("Target", "target", svg("circle", { class: "ring", r: 11 }), svg("path", { class: "cross", d: "M-16 0H16M0-16V16" }), label("target", 14, 28))
      : null;
    this.plane.points.append(this.output);
  }

  /** @param {Configuration} configuration @param {Attention} found */
  draw({ values, target }, { weights, output }) {
    const points = this.drawPoints(values, weights), at = pair(output, this.axes);
    this.rays.forEach((ray, i) => {
      this.plane.connect(ray, points[i], at);
      ray.setAttribute("stroke-width", (0.5 + 5 * weights[i]).toFixed(2));
    });
    this.plane.place(this.output, at);
    this.output.classList.toggle("flip", this.plane.atEdge(at, this.outputName));
    if (this.target) this.plane.put(this.target, pair(target, this.axes));
  }

  /**
   * Draws a line between the values and a target outside of their hull, as a proof; nothing without one.
   * @param {{ direction: Vector, target: Vector, bound: number }} [separation]
   */
  prove(separation) {
    const marks = [];
    if (separation?.direction.length === 2) {
      const [wx, wy] = pair(separation.direction, this.axes), y = pair(separation.target, this.axes);
      const gap = (separation.bound * (Math.abs(wx) + Math.abs(wy))) / (wx ** 2 + wy ** 2);
      const far = (4 * this.plane.range) / Math.hypot(wx, wy);
      const foot = /** @type {Pair} */ ([y[0] - gap * wx, y[1] - gap * wy]);
      const wall = svg("line", { class: "proof" }), distance = svg("line", { class: "proof gap" });
      this.plane.connect(wall, [foot[0] - far * wy, foot[1] + far * wx], [foot[0] + far * wy, foot[1] - far * wx]);
      this.plane.connect(distance, foot, y);
      marks.push(wall, distance);
    }
    this.plane.above.replaceChildren(...marks);
  }
}
