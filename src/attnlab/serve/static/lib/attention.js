// Attention of one query over keys and values, with its margin and bound; hulls in the plane. Nothing here touches the page.

/** @typedef {number[]} Vector */

/**
 * @typedef {object} Attention
 * @property {Vector} scores
 * @property {Vector} weights
 * @property {Vector} output
 * @property {number} leader  the key with the largest score
 * @property {number} next  the key with the second largest score; -1 if there is only one key
 * @property {number} margin  by how much the leader leads; infinite if there is only one key
 * @property {number} rest  the weight of all keys but the leader
 * @property {number} bound  the largest rest that any n keys with this margin can have
 */

/** @param {Vector} a @param {Vector} b */
export const dot = (a, b) => {
  let sum = 0;
  for (let i = 0; i < a.length; i++) sum += a[i] * b[i];
  return sum;
};

/** @param {Vector} a */
export const norm = (a) => Math.hypot(...a);

/** @param {Vector} scores */
export const softmax = (scores) => {
  const top = Math.max(...scores);
  const raised = scores.map((score) => Math.exp(score - top));
  const total = raised.reduce((sum, x) => sum + x, 0);
  return raised.map((x) => x / total);
};

/**
 * The weighted mean of vectors.
 * @param {Vector} weights
 * @param {Vector[]} values
 */
export const mean = (weights, values) => {
  const result = values[0].map(() => 0);
  values.forEach((value, i) => value.forEach((x, c) => (result[c] += weights[i] * x)));
  return result;
};

/**
 * The weight that all other keys have at most if one of n keys leads every other by the margin:
 * r / (1 + r) with r = (n - 1) exp(-margin).
 * @param {number} n
 * @param {number} margin
 */
export const restBound = (n, margin) => {
  const ratio = (n - 1) * Math.exp(-margin);
  return ratio / (1 + ratio);
};

/**
 * @param {Vector[]} keys
 * @param {Vector[]} values
 * @param {Vector} query
 * @param {boolean} [scaled]  whether scores are divided by the square root of the width
 * @returns {Attention}
 */
export const attend = (keys, values, query, scaled = false) => {
  const factor = scaled ? 1 / Math.sqrt(query.length) : 1;
  const scores = keys.map((key) => factor * dot(key, query));
  const weights = softmax(scores);
  let leader = 0;
  for (let i = 1; i < scores.length; i++) if (scores[i] > scores[leader]) leader = i;
  let next = -1;
  for (let i = 0; i < scores.length; i++) if (i !== leader && (next < 0 || scores[i] > scores[next])) next = i;
  const margin = next < 0 ? Infinity : scores[leader] - scores[next];
  let rest = 0; // not 1 - weight, which would be rounded to 0 where it is small
  weights.forEach((weight, i) => (rest += i === leader ? 0 : weight));
  return { scores, weights, output: mean(weights, values), leader, next, margin, rest, bound: restBound(keys.length, margin) };
};

/**
 * The corners of the convex hull of points in the plane, counterclockwise, as indices.
 * @param {Vector[]} points
 * @returns {number[]}
 */
export const hull = (points) => {
  const order = points.map((_, i) => i).sort((i, j) => points[i][0] - points[j][0] || points[i][1] - points[j][1]);
  const distinct = order.filter((i, place) => {
    const before = points[order[place - 1]];
    return !before || before[0] !== points[i][0] || before[1] !== points[i][1];
  });
  if (distinct.length < 3) return distinct;
  /** @param {number} o @param {number} a @param {number} b */
  const turn = (o, a, b) =>
    (points[a][0] - points[o][0]) * (points[b][1] - points[o][1]) - (points[a][1] - points[o][1]) * (points[b][0] - points[o][0]);
  /** @param {number[]} row */
  const chain = (row) => {
    /** @type {number[]} */
    const kept = [];
    for (const i of row) {
      while (kept.length > 1 && turn(kept[kept.length - 2], kept[kept.length - 1], i) <= 0) kept.pop();
      kept.push(i);
    }
    return kept.slice(0, -1);
  };
  return [...chain(distinct), ...chain(distinct.reverse())];
};

/**
 * The smallest of 1, 2, 5, 10, 20, ... that is at least x.
 * @param {number} x
 */
export const niceAbove = (x) => {
  const power = 10 ** Math.floor(Math.log10(x));
  const found = [1, 2, 5, 10].find((step) => step * power >= x * (1 - 1e-12)) ?? 10;
  return Number((found * power).toPrecision(1));
};

/**
 * The nearest multiple of a step that is a power of ten, without digits that stem from rounding.
 * @param {number} x
 * @param {number} step
 */
export const snap = (x, step) => {
  const digits = Math.max(0, Math.round(-Math.log10(step)));
  return Number((Math.round(x / step) * step).toFixed(digits)) + 0;
};

/**
 * The 95th percentile, by the nearest rank.
 * @param {number[]} times
 */
export const p95 = (times) => [...times].sort((a, b) => a - b)[Math.max(0, Math.ceil(0.95 * times.length) - 1)] ?? 0;
