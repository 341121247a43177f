// Keys, query, values and output in two linked planes, with weights next to them. Knows no addresses and no server.
import { attend, niceAbove, p95 } from "../../lib/attention.js";
import { h } from "../../lib/dom.js";
import { named } from "./format.js";
import { KeyPicture, ValuePicture, pair, put } from "./pictures.js";
import { MOST_POINTS, queryOf, splitQuery } from "./state.js";
import { Weights } from "./weights.js";

/** @typedef {import("./plane.js").Pair} Pair */
/** @typedef {import("./plane.js").Handle} Handle */
/** @typedef {import("./state.js").Configuration} Configuration */
/** @typedef {import("../../lib/attention.js").Vector} Vector */
/**
 * @typedef {object} Proof  a certificate that the planes can show
 * @property {{ index: number, weights: number[] }} [combination]  a key that is a mean of others
 * @property {{ direction: Vector, target: Vector, bound: number }} [separation]  a target outside of the hull of the values
 */

export const FRAME = "design-frame"; // the name of the measures of script time per frame
const REMEMBERED = 600; // frames
const GLIDE = 500; // milliseconds

export class Playground {
  /** @param {Configuration} configuration @param {(settled: boolean) => void} changed  called after every change */
  constructor(configuration, changed) {
    this.configuration = configuration;
    this.changed = changed;
    this.withTarget = false;
    /** @type {Proof} */
    this.proof = {};
    /** @type {number[]} */
    this.times = [];
    this.gliding = 0;
    const end = () => this.#settle();
    this.keys = new KeyPicture({ end, move: (handle, to) => this.#moveKey(handle, to), remove: (handle) => this.remove(this.keys.handles.indexOf(handle)) });
    this.values = new ValuePicture({ end, move: (handle, to) => this.#moveValue(handle, to), remove: (handle) => this.remove(this.values.handles.indexOf(handle)) });
    this.weights = new Weights((index) => this.remove(index));
    this.keyNote = h("p", { class: "plane-note" });
    this.keys.plane.element.append(this.keyNote);
    this.values.plane.element.append(h("p", { class: "plane-note" }, "The diamond is the output, the mean of the values with the weights shown. It never leaves their hull."));
    this.keys.plane.element.classList.add("keys");
    this.values.plane.element.classList.add("values-plane");
    this.side = h("div", { class: "side" }, this.weights.element);
    this.element = h("div", { class: "playground" }, this.keys.plane.element, this.values.plane.element, this.side);
    this.build();
  }

  /** Shows another configuration. @param {Configuration} configuration */
  set(configuration) {
    cancelAnimationFrame(this.gliding);
    this.configuration = configuration;
    this.proof = {};
    this.build();
    this.changed(true);
  }

  /** Makes everything that depends on the number of points and dimensions. */
  build() {
    const { keys, direction, target } = this.configuration;
    this.keys.build(this.configuration);
    this.values.build(this.configuration, this.withTarget);
    this.#chooseAxes(this.keys, direction.length, "keys");
    this.#chooseAxes(this.values, target.length, "values");
    this.weights.build(keys.length);
    this.fit();
  }

  /**
   * Lets one choose which coordinates a plane shows; there is no choice for one or two dimensions.
   * @param {KeyPicture | ValuePicture} picture
   * @param {number} dimensions
   * @param {string} what
   */
  #chooseAxes(picture, dimensions, what) {
    const { axes, plane } = picture;
    /** @param {0 | 1} place @param {string} words */
    const choice = (place, words) => {
      const select = h("select", {
        "aria-label": `${words} axis of the plane of ${what}`,
        onchange: () => {
          const to = Number(select.value);
          if (axes[1 - place] === to) axes[1 - place] = axes[place];
          axes[place] = to;
          this.build();
        },
      }, Array.from({ length: dimensions }, (_, i) => h("option", { value: i, selected: i === axes[place] }, named("x", i + 1))));
      return select;
    };
    plane.axes.replaceChildren(...(dimensions > 2 ? ["shows ", choice(0, "Horizontal"), " and ", choice(1, "Vertical")] : []));
  }

  /** Chooses the ranges so that everything is visible, and draws. */
  fit() {
    for (const { plane, points } of this.#shown()) plane.fit(points);
    this.draw();
    this.#drawProof();
    this.#describe();
  }

  /** The planes, each with all points that it shows. */
  #shown() {
    const { keys, values, direction, target } = this.configuration;
    return [
      { plane: this.keys.plane, points: [...keys, direction].map((point) => pair(point, this.keys.axes)) },
      { plane: this.values.plane, points: (this.withTarget ? [...values, target] : values).map((point) => pair(point, this.values.axes)) },
    ];
  }

  /** Draws the current configuration: what happens in every frame. */
  draw() {
    const { keys, values, scaled } = this.configuration;
    const query = queryOf(this.configuration);
    const found = attend(keys, values, query, scaled);
    this.keys.draw(this.configuration, found);
    this.values.draw(this.configuration, found);
    this.weights.update(found, query);
  }

  /** Shows a certificate in the planes; it stays until a point moves. @param {Proof} proof */
  prove(proof) {
    this.proof = proof;
    this.#drawProof();
  }

  #drawProof() {
    this.keys.prove(this.configuration, this.proof.combination);
    this.values.prove(this.proof.separation);
  }

  /** @param {Handle} handle @param {Pair} to */
  #moveKey(handle, to) {
    const index = this.keys.handles.indexOf(handle);
    this.#move(() => put(index < 0 ? this.configuration.direction : this.configuration.keys[index], this.keys.axes, to), index >= 0);
  }

  /** @param {Handle} handle @param {Pair} to */
  #moveValue(handle, to) {
    const index = this.values.handles.indexOf(handle);
    this.#move(() => put(index < 0 ? this.configuration.target : this.configuration.values[index], this.values.axes, to), true);
  }

  /** One frame of moving a point, whose script time is recorded. @param {() => void} change @param {boolean} refutes  whether a proof shown is void */
  #move(change, refutes) {
    cancelAnimationFrame(this.gliding);
    const start = performance.now();
    change();
    if (refutes) this.prove({});
    this.draw();
    this.changed(false);
    const end = performance.now();
    performance.measure(FRAME, { start, end });
    this.times.push(end - start);
    if (this.times.length > REMEMBERED) this.times.shift();
  }

  #settle() {
    if (this.#shown().some(({ plane, points }) => points.some((point) => plane.beyond(point)))) this.fit();
    this.#describe();
    this.element.dataset.frames = String(this.times.length);
    this.element.dataset.frameP95 = p95(this.times).toFixed(3);
    if (performance.getEntriesByName(FRAME).length > 4 * REMEMBERED) performance.clearMeasures(FRAME);
    this.changed(true);
  }

  /** What is not needed in every frame: names for screen readers, and the note. */
  #describe() {
    for (const { plane } of this.#shown()) for (const handle of plane.handles.values()) plane.describe(handle);
    const { direction, scaled } = this.configuration;
    this.weights.describe(scaled);
    const note = direction.length <= 2
      ? `The band across the query runs from the leading key to the next; its width is ${scaled ? "√d × " : ""}the margin ÷ length of q.`
      : "Dragging changes the two coordinates shown; the table below has all of them.";
    if (this.keyNote.textContent !== note) this.keyNote.textContent = note; // what is marked in it stays
  }

  /** Shows or hides the target. @param {boolean} visible */
  showTarget(visible) {
    if (this.withTarget === visible) return;
    this.withTarget = visible;
    this.build();
    this.changed(true);
  }

  /** Sets the factor of the query. @param {number} scale */
  rescale(scale) {
    cancelAnimationFrame(this.gliding);
    this.configuration.scale = scale;
    this.draw();
    this.changed(true);
  }

  /** Shows numbers that have been changed elsewhere. */
  refresh() {
    cancelAnimationFrame(this.gliding);
    this.proof = {};
    this.fit();
    this.changed(true);
  }

  /** Adds a key and a value, away from the others. */
  add() {
    const { keys, values, direction, target } = this.configuration;
    if (keys.length >= MOST_POINTS) return;
    const angle = 2.4 * keys.length; // the golden angle leaves no two points close together
    keys.push(fresh(direction.length, 0.75 * this.keys.plane.range, angle));
    values.push(fresh(target.length, 0.6 * this.values.plane.range, angle + 1));
    this.set(this.configuration);
  }

  /** @param {number} index */
  remove(index) {
    const { keys, values } = this.configuration;
    if (index < 0 || keys.length < 2) return;
    keys.splice(index, 1);
    values.splice(index, 1);
    this.set(this.configuration);
    this.keys.handles[Math.min(index, keys.length - 1)].node.focus({ preventScroll: true });
  }

  /** Moves the query to another one, smoothly unless motion is unwanted. @param {Vector} query */
  glide(query) {
    cancelAnimationFrame(this.gliding);
    const { keys, direction: from, scale: first } = this.configuration;
    const { direction, scale } = splitQuery(query, niceAbove(Math.max(...keys.flat().map(Math.abs)) || 1));
    const start = performance.now();
    const duration = matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : GLIDE;
    /** @param {number} now */
    const step = (now) => {
      const t = duration ? Math.min(1, Math.max(0, now - start) / duration) : 1;
      const eased = t * t * (3 - 2 * t);
      this.configuration.direction = t < 1 ? from.map((x, i) => x + (direction[i] - x) * eased) : [...direction];
      this.configuration.scale = t < 1 ? first * (scale / first) ** eased : scale;
      this.draw();
      if (t < 1) this.gliding = requestAnimationFrame(step);
      else {
        this.fit();
        this.changed(true);
      }
    };
    step(start);
  }
}

/** A vector in this direction of the first two coordinates. @param {number} size @param {number} radius @param {number} angle @returns {Vector} */
const fresh = (size, radius, angle) =>
  Array.from({ length: size }, (_, i) => (i < 2 ? Number((radius * [Math.cos(angle), Math.sin(angle)][i]).toPrecision(2)) : 0));
