// A plane with a grid and points that are dragged, or moved with the arrow keys.
import { niceAbove, snap } from "../../lib/attention.js";
import { h, svg } from "../../lib/dom.js";

/** @typedef {[number, number]} Pair */

/**
 * @typedef {object} Handle  a point that can be moved
 * @property {SVGGElement} node
 * @property {Pair} at
 * @property {string} name
 * @property {SVGTextElement | undefined} text  its name in the picture
 */

/**
 * @typedef {object} Moves
 * @property {(handle: Handle, to: Pair) => void} move  called at most once per frame while a point is dragged
 * @property {() => void} end  called when a point has been dropped
 * @property {(handle: Handle) => void} remove  called when Delete is pressed
 */

const HALF = 200; // of the picture, in its own units
const INNER = 186; // so that points at the edge stay visible

export class Plane {
  /**
   * @param {string} title
   * @param {string} label  what the plane shows, for screen readers
   * @param {Moves} moves
   */
  constructor(title, label, moves) {
    this.title = title;
    this.moves = moves;
    this.range = 1;
    this.flat = false; // one dimension: points move along the horizontal axis only
    this.grid = svg("g", { class: "grid-lines", "aria-hidden": "true" });
    this.below = svg("g", { "aria-hidden": "true" });
    this.points = svg("g");
    this.above = svg("g", { "aria-hidden": "true" });
    this.svg = svg(
      "svg",
      { viewBox: `${-HALF} ${-HALF} ${2 * HALF} ${2 * HALF}`, class: "plane", role: "group", "aria-label": label },
      this.grid, this.below, this.above, this.points,
    );
    this.axes = h("span", { class: "axes" });
    this.element = h("figure", { class: "plane-figure" }, h("figcaption", {}, h("span", {}, title), this.axes), this.svg);
    /** @type {Map<SVGGElement, Handle>} */
    this.handles = new Map();
  }

  /** The units of the picture per unit of the plane. */
  get unit() {
    return INNER / this.range;
  }

  /** The step to which moved points are rounded, a power of ten. */
  get step() {
    return 10 ** Math.floor(Math.log10(this.range / 50));
  }

  /**
   * Chooses the range so that these points are visible, and draws the grid.
   * @param {Pair[]} points
   */
  fit(points) {
    const most = Math.max(0, ...points.flat().map(Math.abs));
    const power = 10 ** Math.floor(Math.log10(most || 1));
    const steps = [1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 12.5];
    this.range = most ? (steps.find((step) => step * power >= 1.08 * most) ?? 12.5) * power : 1;
    const apart = niceAbove(this.range / 4.5);
    const lines = [];
    for (let i = -Math.floor(this.range / apart); i * apart <= this.range * 1.0001; i++) {
      const at = i * apart * this.unit, kind = i === 0 ? "axis" : "grid";
      lines.push(svg("line", { class: kind, x1: at, x2: at, y1: -HALF, y2: HALF }), svg("line", { class: kind, y1: at, y2: at, x1: -HALF, x2: HALF }));
      if (i) {
        const text = String(Number((i * apart).toPrecision(6))).replace("-", "−");
        lines.push(svg("text", { x: at, y: 13, "text-anchor": "middle" }, text), svg("text", { x: -5, y: at - 5, "text-anchor": "end" }, String(Number((-i * apart).toPrecision(6))).replace("-", "−")));
      }
    }
    this.grid.replaceChildren(...lines);
  }

  /** Whether a point is at or beyond the edge. @param {Pair} point */
  beyond(point) {
    return Math.max(...point.map(Math.abs)) > 0.97 * this.range;
  }

  /** @param {Pair} point @returns {Pair} */
  picture([x, y]) {
    return [x * this.unit, -y * this.unit];
  }

  /** @param {Element} node @param {Pair} point */
  place(node, point) {
    const [x, y] = this.picture(point);
    node.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)})`);
  }

  /**
   * A line between two points of the plane.
   * @param {Element} node
   * @param {Pair} from
   * @param {Pair} to
   */
  connect(node, from, to) {
    const [x1, y1] = this.picture(from), [x2, y2] = this.picture(to);
    node.setAttribute("x1", x1.toFixed(2));
    node.setAttribute("y1", y1.toFixed(2));
    node.setAttribute("x2", x2.toFixed(2));
    node.setAttribute("y2", y2.toFixed(2));
  }

  /** @param {Pair[]} points */
  outline(points) {
    return points.map((point) => this.picture(point).map((x) => x.toFixed(2)).join(",")).join(" ");
  }

  /**
   * A point that can be moved; `parts` are drawn around its position.
   * @param {string} name  for screen readers
   * @param {string} kind  classes
   * @param {...SVGElement} parts
   * @returns {Handle}
   */
  handle(name, kind, ...parts) {
    const node = svg(
      "g",
      { class: `handle ${kind}`, tabindex: 0, role: "slider", "aria-label": name, "aria-roledescription": "movable point" },
      svg("circle", { class: "hit", r: 18 }),
      ...parts,
    );
    const handle = { node, at: /** @type {Pair} */ ([0, 0]), name, text: parts.find((part) => part instanceof SVGTextElement) };
    this.handles.set(node, handle);
    this.points.append(node);
    node.addEventListener("pointerdown", (event) => this.#drag(handle, event));
    // Browsers ignore `touch-action` inside of pictures, and would scroll the page.
    node.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false });
    node.addEventListener("keydown", (event) => this.#key(handle, event));
    return handle;
  }

  clear() {
    this.handles.clear();
    this.points.replaceChildren();
  }

  /** @param {Handle} handle @param {Pair} at */
  put(handle, at) {
    handle.at = at;
    this.place(handle.node, at);
    handle.node.classList.toggle("flip", this.atEdge(at, handle.text));
  }

  /** Whether a name at this point must stand to the left of it. @param {Pair} at @param {SVGTextElement | undefined} text */
  atEdge(at, text) {
    return at[0] * this.unit + 14 + 9.5 * (text?.textContent?.length ?? 0) > HALF;
  }

  /** Tells screen readers where a point is. @param {Handle} handle */
  describe(handle) {
    const [x, y] = handle.at.map((value) => Number(value.toPrecision(4)));
    handle.node.setAttribute("aria-valuenow", String(x));
    handle.node.setAttribute("aria-valuetext", `${x}, ${y}`);
  }

  /** @param {Pair} to @returns {Pair} */
  #allowed([x, y]) {
    /** @param {number} value */
    const within = (value) => snap(Math.max(-this.range, Math.min(this.range, value)), this.step);
    return [within(x), this.flat ? 0 : within(y)];
  }

  /** @param {Handle} handle @param {PointerEvent} down */
  #drag(handle, down) {
    if (down.button) return;
    down.preventDefault();
    handle.node.focus({ preventScroll: true });
    handle.node.setPointerCapture(down.pointerId);
    handle.node.classList.add("dragged");
    const box = this.svg.getBoundingClientRect();
    /** @param {PointerEvent} event @returns {Pair} */
    const position = (event) => {
      const size = 2 * HALF / box.width;
      return [((event.clientX - box.left) * size - HALF) / this.unit, -((event.clientY - box.top) * size - HALF) / this.unit];
    };
    const start = position(down), [x0, y0] = handle.at;
    /** @type {Pair | null} */
    let wanted = null;
    let frame = 0;
    const apply = () => {
      frame = 0;
      if (wanted) this.moves.move(handle, wanted);
      wanted = null;
    };
    /** @param {PointerEvent} event */
    const move = (event) => {
      const [x, y] = position(event);
      wanted = this.#allowed([x0 + x - start[0], y0 + y - start[1]]);
      frame ||= requestAnimationFrame(apply);
    };
    const end = () => {
      cancelAnimationFrame(frame);
      apply();
      handle.node.classList.remove("dragged");
      for (const name of ["pointerup", "pointercancel"]) handle.node.removeEventListener(name, end);
      handle.node.removeEventListener("pointermove", move);
      this.moves.end();
    };
    handle.node.addEventListener("pointermove", move);
    for (const name of ["pointerup", "pointercancel"]) handle.node.addEventListener(name, end);
  }

  /** @param {Handle} handle @param {KeyboardEvent} event */
  #key(handle, event) {
    if (event.key === "Delete") return this.moves.remove(handle);
    /** @type {Record<string, Pair>} */
    const arrows = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    const way = arrows[event.key];
    if (!way || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const size = this.step * (event.shiftKey ? 10 : 1);
    const [x, y] = handle.at;
    this.moves.move(handle, this.#allowed([x + way[0] * size, y + way[1] * size]));
    this.moves.end();
  }
}
