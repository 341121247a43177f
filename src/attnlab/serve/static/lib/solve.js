// Queries for wanted outputs, for a page without a server: small problems in double precision.
//
// A query that is found has the error shown. "Impossible" is said for two reasons only, both by a distance from a hull: the
// target is outside of the hull of the values, or its key is a mean of other keys, so that the others keep part of the weight.
// Anything else that is not found is undecided: `attnlab design` searches longer, and proves its verdicts in exact arithmetic.
import { attend, dot, norm } from "./attention.js";

/** @typedef {import("./attention.js").Vector} Vector */
/**
 * @typedef {object} Wanted
 * @property {"select" | "average" | "reach"} task
 * @property {Vector[]} keys
 * @property {Vector[]} values
 * @property {number} tolerance
 * @property {"none" | "sqrt"} scale
 * @property {number} [index]
 * @property {number[]} [indices]
 * @property {Vector} [weights]
 * @property {Vector} [target]
 */

const ZERO = 1e-9; // a distance that counts as none, beside coordinates of about 1
const LONGEST = 1e5; // of a query that is tried, times the size of a key

/** @param {Vector} a @param {Vector} b */
const minus = (a, b) => a.map((x, i) => x - b[i]);
/** @param {Vector[]} points @param {Vector} weights */
const combined = (points, weights) => points[0].map((_, c) => points.reduce((sum, point, i) => sum + weights[i] * point[c], 0));
/** @param {number} x */
const digits = (x) => String(Number(x.toPrecision(4)));
/** @param {Vector} x */
const vector = (x) => `[${x.map(digits).join(", ")}]`;

/** The solution of linear equations, by elimination; null if there is no single one. @param {Vector[]} rows @param {Vector} right */
export const linear = (rows, right) => {
  const a = rows.map((row, i) => [...row, right[i]]), n = a.length;
  for (let c = 0; c < n; c++) {
    let best = c;
    for (let r = c + 1; r < n; r++) if (Math.abs(a[r][c]) > Math.abs(a[best][c])) best = r;
    if (Math.abs(a[best][c]) < 1e-14) return null;
    [a[c], a[best]] = [a[best], a[c]];
    for (let r = 0; r < n; r++) {
      const factor = r === c ? 0 : a[r][c] / a[c][c];
      if (factor) for (let k = c; k <= n; k++) a[r][k] -= factor * a[c][k];
    }
  }
  return a.map((row, i) => row[n] / row[i]);
};

/**
 * The point of a hull that is nearest to the origin, by Wolfe's algorithm, with the weights of the corners that it is a mean of.
 * @param {Vector[]} points
 */
export const nearest = (points) => {
  const most = Math.max(...points.map(norm), 1e-300);
  let chosen = [points.reduce((best, point, i) => (norm(point) < norm(points[best]) ? i : best), 0)];
  let weights = [1];
  for (let round = 0; round < 200; round++) {
    const x = combined(chosen.map((i) => points[i]), weights);
    const next = points.reduce((best, point, i) => (dot(point, x) < dot(points[best], x) ? i : best), 0);
    if (chosen.includes(next) || dot(x, x) - dot(points[next], x) <= 1e-13 * most * most) break;
    chosen.push(next);
    weights.push(0);
    for (;;) {
      // The nearest point of the plane through the chosen corners; corners whose weight would be negative are left behind.
      const corners = chosen.map((i) => points[i]);
      const rows = [...corners.map((a) => [...corners.map((b) => dot(a, b) / most ** 2), 1]), [...corners.map(() => 1), 0]];
      const free = linear(rows, [...corners.map(() => 0), 1])?.slice(0, -1);
      if (!free) break;
      if (free.every((w) => w > 1e-12)) {
        weights = free;
        break;
      }
      const share = Math.min(...free.map((w, i) => (w <= 1e-12 && weights[i] > w ? weights[i] / (weights[i] - w) : 1)));
      const moved = weights.map((w, i) => w + share * (free[i] - w));
      const kept = moved.map((w) => w > 1e-12);
      if (kept.every(Boolean)) kept[moved.indexOf(Math.min(...moved))] = false;
      chosen = chosen.filter((_, i) => kept[i]);
      weights = moved.filter((_, i) => kept[i]);
      const total = weights.reduce((sum, w) => sum + w, 0);
      weights = weights.map((w) => w / total);
    }
  }
  const all = points.map(() => 0);
  chosen.forEach((i, place) => (all[i] = weights[place]));
  return { point: combined(points, all), weights: all };
};

/** The least error of any mean of these points, as far as the nearest one proves it, and the direction. @param {Vector[]} points @param {Vector} target */
const gap = (points, target) => {
  const { point } = nearest(points.map((one) => minus(one, target)));
  const direction = point.map((x) => -x), size = direction.reduce((sum, x) => sum + Math.abs(x), 0);
  return { direction, bound: size < ZERO ? 0 : Math.max(0, Math.min(...points.map((one) => dot(direction, minus(target, one)))) / size) };
};

class Problem {
  /** @param {Wanted} wanted @param {Vector} target */
  constructor({ keys, values, scale }, target) {
    Object.assign(this, { keys, values, target });
    this.keys = keys;
    this.values = values;
    this.target = target;
    this.scaled = scale === "sqrt";
    this.factor = this.scaled ? 1 / Math.sqrt(keys[0].length) : 1;
    this.size = this.factor * Math.max(...keys.map((key) => norm(minus(key, keys[0])))) || 1;
  }

  /** @param {Vector} query */
  read(query) {
    const found = attend(this.keys, this.values, query, this.scaled);
    return { ...found, query, error: Math.max(...minus(found.output, this.target).map(Math.abs)) };
  }

  /** Descends from a query by Levenberg and Marquardt's method. @param {Vector} query */
  descend(query) {
    let at = this.read(query), damping = 1e-2;
    for (let step = 0; step < 60 && damping < 1e8; step++) {
      const middle = combined(this.keys, at.weights), miss = minus(this.target, at.output);
      const changes = at.output.map((mean, c) =>
        middle.map((_, d) => this.factor * at.weights.reduce((sum, w, i) => sum + w * (this.values[i][c] - mean) * (this.keys[i][d] - middle[d]), 0)));
      const square = middle.map((_, d) => middle.map((_, e) => changes.reduce((sum, row) => sum + row[d] * row[e], 0)));
      const trace = square.reduce((sum, row, d) => sum + row[d], 0) || 1e-300;
      square.forEach((row, d) => (row[d] += damping * trace + 1e-300));
      const move = linear(square, middle.map((_, d) => changes.reduce((sum, row, c) => sum + row[d] * miss[c], 0)));
      const next = move && this.read(at.query.map((x, d) => x + move[d]));
      const better = next && norm(minus(next.output, this.target)) < norm(miss) && norm(next.query) * this.size < LONGEST;
      if (better) at = next;
      damping *= better ? 0.2 : 4;
    }
    return at;
  }

  /** Directions in which queries are tried: on a circle, or from the middle of the keys to each, and between them. */
  directions() {
    const width = this.keys[0].length;
    if (width === 1) return [[1], [-1]];
    if (width === 2) return Array.from({ length: 24 }, (_, i) => [Math.cos((Math.PI * i) / 12), Math.sin((Math.PI * i) / 12)]);
    const n = this.keys.length, middle = combined(this.keys, this.keys.map(() => 1 / n));
    const ways = this.keys.map((key) => minus(key, middle));
    const pairs = ways.slice(0, 12).flatMap((a, i) => ways.slice(0, i).map((b) => a.map((x, c) => x + b[c])));
    return [...ways, ...pairs].map((way) => way.map((x) => x / (norm(way) || 1)));
  }

  /** The shortest query in a direction whose error is allowed; null if none is. @param {Vector} way @param {number} tolerance */
  along(way, tolerance) {
    const at = (/** @type {number} */ length) => this.read(way.map((x) => (x * length) / this.size));
    let high = 1;
    while (at(high).error > tolerance) if ((high *= 2) > LONGEST) return null;
    let low = high / 2;
    for (let i = 0; i < 40; i++) {
      const middle = (low + high) / 2;
      if (at(middle).error <= tolerance) high = middle;
      else low = middle;
    }
    return at(high);
  }
}

/** The command that computes the same. @param {Wanted} wanted */
const commandOf = ({ task, keys, values, index, indices, weights, target, tolerance, scale }) => {
  const rows = (/** @type {Vector[]} */ all) => `'${all.map((row) => row.join(",")).join(";")}'`;
  const what = task === "select" ? ["--index", index] : task === "reach" ? ["--target", rows([target ?? []])] : ["--indices", indices?.join(","), ...(weights ? ["--weights", rows([weights])] : [])];
  return ["attnlab design", weights ? "blend" : task, "--keys", rows(keys), "--values", rows(values), ...what, "--tolerance", tolerance, ...(scale === "none" ? [] : ["--scale", scale])].join(" ");
};

/** A query, a reason why there is none, or neither; in the form of the server's verdict. @param {Wanted} wanted */
export const solve = (wanted) => {
  const { task, keys, values, tolerance, indices = [], index = 0 } = wanted;
  const chosen = task === "select" ? [index] : indices;
  const shares = wanted.weights ?? chosen.map(() => 1 / chosen.length);
  const target = task === "reach" ? wanted.target ?? values[0] : combined(chosen.map((i) => values[i]), shares);
  const problem = new Problem(wanted, target);
  const others = keys.filter((_, i) => i !== index);
  const way = task === "select" && others.length ? nearest(others.map((key) => minus(keys[index], key))) : null;
  const inside = way !== null && norm(way.point) < ZERO * (1 + norm(keys[index]));

  let best = problem.read(keys[0].map(() => 0));
  if (best.error > tolerance && way && !inside) best = problem.along(way.point.map((x) => x / norm(way.point)), tolerance) ?? best;
  const starts = best.error <= tolerance ? [] : problem.directions().flatMap((direction) => [0.5, 3, 12].map((length) => direction.map((x) => (x * length) / problem.size)));
  for (const start of starts) {
    const found = problem.descend(start);
    if (found.error < best.error) best = found;
    if (best.error <= tolerance) break;
  }

  let certificate = null, lower = 0, why = "";
  if (best.error > tolerance) {
    const outside = gap(values, target);
    if (outside.bound > tolerance) {
      lower = outside.bound;
      certificate = { type: "separating", direction: outside.direction };
      why = `The target is outside of the hull of the values, so every output misses it by at least ${digits(lower)}.`;
    } else if (way && inside) {
      // By the inequality of arithmetic and geometric means, the others weigh at least e^H times as much as a key that is
      // a mean of them with weights of entropy H.
      const entropy = way.weights.reduce((sum, w) => sum - (w > 0 ? w * Math.log(w) : 0), 0);
      const least = 1 / (1 + Math.exp(-entropy));
      lower = least * gap(values.filter((_, i) => i !== index), target).bound;
      const weights = keys.map((_, i) => (i === index ? 0 : way.weights[i < index ? i : i - 1]));
      if (lower > tolerance) certificate = { type: "convex_combination", index, weights };
      why = `Key ${index} is a mean of other keys, so they keep at least ${digits(least)} of the weight, and every output misses value ${index} by at least ${digits(lower)}.`;
    }
  }
  const status = best.error <= tolerance ? "solved" : certificate ? "impossible" : "undecided";
  const margin = task === "select" && best.leader === index && best.next >= 0 ? `Key ${index} leads every other key by ${digits(best.margin)}: ` : "";
  const statement = status === "solved" ? `${margin}${margin ? "t" : "T"}he output is within ${digits(best.error)} of the target.`
    : status === "impossible" ? why : `The best query found here misses by ${digits(best.error)}. The command below searches longer, and tries to prove that there is none.`;
  const names = task === "select" ? `select value ${index}` : task === "reach" ? "reach the target" : `${wanted.weights ? "blend" : "average"} values ${chosen.join(", ")}`;
  return {
    result: { task: names, status, statement, query: best.query, target, certificate, lower_bound: lower },
    facts: /** @type {[string, string][]} */ ([
      ["query", vector(best.query)], ["norm of the query", digits(norm(best.query))], ["output", vector(best.output)], ["wanted", vector(target)],
      ["error", `${digits(best.error)}, computed in this browser (allowed ${digits(tolerance)})`],
      ...(lower > 0 ? [["minimum error", digits(lower)]] : []),
    ]),
    command: commandOf(wanted),
  };
};
