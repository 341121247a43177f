// The state of the design view: what is drawn and what is asked, its form in the address, and the presets.
import { niceAbove, norm } from "../../lib/attention.js";

/** @typedef {import("../../lib/attention.js").Vector} Vector */

/**
 * @typedef {object} Configuration  what the planes show; the query is `scale` times `direction`
 * @property {Vector[]} keys
 * @property {Vector[]} values
 * @property {Vector} direction
 * @property {number} scale
 * @property {boolean} scaled  whether scores are divided by the square root of the width
 * @property {Vector} target
 */

/** @typedef {"select" | "average" | "reach"} Task */

/**
 * @typedef {object} Question  what the solver is asked
 * @property {Task} task
 * @property {number} index
 * @property {number[]} indices
 * @property {string} weights
 * @property {number} tolerance
 */

export const MOST_POINTS = 40;
export const MOST_DIMENSIONS = 8;

/** @param {Configuration} configuration */
export const queryOf = ({ direction, scale }) => direction.map((x) => Number((x * scale).toPrecision(15)));

/**
 * A number without superfluous digits.
 * @param {number} x
 */
export const shortNumber = (x) => String(Number(x.toPrecision(12)));

/** @param {Vector[]} rows */
export const writeRows = (rows) => rows.map((row) => row.map(shortNumber).join(",")).join(";");

/**
 * Rows of numbers such as "1,0;0,1"; null for anything else.
 * @param {string | undefined} text
 * @returns {Vector[] | null}
 */
export const readRows = (text) => {
  if (!text || text.length > 20000) return null;
  const rows = text.split(";").map((row) => row.split(",").map((x) => (x.trim() === "" ? NaN : Number(x))));
  const fine = rows.every((row) => row.length === rows[0].length && row.every((x) => Number.isFinite(x) && Math.abs(x) <= 1e12));
  return fine ? rows : null;
};

/**
 * The part of the address that describes a configuration.
 * @param {Configuration} configuration
 * @returns {Record<string, string>}
 */
export const writeConfiguration = ({ keys, values, direction, scale, scaled, target }) => ({
  k: writeRows(keys),
  v: writeRows(values),
  q: writeRows([direction]),
  c: scale === 1 ? "" : shortNumber(scale),
  sqrt: scaled ? "1" : "",
  t: writeRows([target]),
});

/**
 * The configuration that an address describes; null if it describes none. Parts that do not fit the rest are left out.
 * @param {Record<string, string>} state
 * @returns {Configuration | null}
 */
export const readConfiguration = (state) => {
  const keys = readRows(state.k), values = readRows(state.v);
  if (!keys || !values || keys.length !== values.length || keys.length > MOST_POINTS) return null;
  const width = keys[0].length, height = values[0].length;
  if (Math.max(width, height) > MOST_DIMENSIONS) return null;
  const direction = readRows(state.q)?.[0], target = readRows(state.t)?.[0];
  const scale = Number(state.c || 1);
  return {
    keys,
    values,
    direction: direction?.length === width ? direction : keys[0].map(() => 0),
    scale: scale > 0 && scale <= 1e6 ? scale : 1,
    scaled: state.sqrt === "1",
    target: target?.length === height ? target : center(values),
  };
};

/** @param {Vector[]} points */
export const center = (points) =>
  points[0].map((_, c) => Number((points.reduce((sum, point) => sum + point[c], 0) / points.length).toPrecision(3)));

/**
 * @param {Question} question
 * @returns {Record<string, string>}
 */
export const writeQuestion = ({ task, index, indices, weights, tolerance }) => ({
  do: task === "select" ? "" : task,
  j: task === "select" && index ? String(index) : "",
  i: task === "average" ? indices.join(",") : "",
  w: task === "average" ? weights : "",
  tol: tolerance === 0.01 ? "" : shortNumber(tolerance),
});

/**
 * @param {Record<string, string>} state
 * @param {number} n  the number of points
 * @returns {Question}
 */
export const readQuestion = (state, n) => {
  /** @param {number} j */
  const known = (j) => Number.isInteger(j) && j >= 0 && j < n;
  const task = state.do === "average" || state.do === "reach" ? state.do : "select";
  const indices = (state.i ?? "").split(",").filter(Boolean).map(Number).filter(known);
  const tolerance = Number(state.tol || 0.01);
  return {
    task,
    index: known(Number(state.j)) ? Number(state.j) : 0,
    indices: indices.length ? [...new Set(indices)] : [0, 1].filter(known),
    weights: (state.w ?? "").slice(0, 500),
    tolerance: tolerance >= 1e-9 && tolerance <= 1e6 ? tolerance : 0.01,
  };
};

/**
 * Splits a query into a direction that fits a plane of this range, and a factor.
 * @param {Vector} query
 * @param {number} range
 * @returns {{ direction: Vector, scale: number }}
 */
export const splitQuery = (query, range) => {
  const size = norm(query);
  const scale = size > 0.85 * range ? niceAbove(size / (0.85 * range)) : 1;
  return { direction: query.map((x) => Number((x / scale).toPrecision(12))), scale };
};

/**
 * The configuration with other numbers of dimensions; new coordinates are 0, so the picture stays.
 * @param {Configuration} configuration
 * @param {number} width  of keys
 * @param {number} height  of values
 * @returns {Configuration}
 */
export const resized = (configuration, width, height) => {
  /** @param {Vector} vector @param {number} size */
  const fit = (vector, size) => Array.from({ length: size }, (_, i) => vector[i] ?? 0);
  return {
    ...configuration,
    keys: configuration.keys.map((key) => fit(key, width)),
    direction: fit(configuration.direction, width),
    values: configuration.values.map((value) => fit(value, height)),
    target: fit(configuration.target, height),
  };
};

/** Twenty keys on a circle, so that each can be selected; values on a spiral. */
const twenty = () => {
  const angle = (/** @type {number} */ i) => (2 * Math.PI * i) / 20;
  /** @param {number} x */
  const round = (x) => Number(x.toFixed(2)) + 0;
  const points = Array.from({ length: 20 }, (_, i) => i);
  return {
    keys: points.map((i) => [round(Math.cos(angle(i))), round(Math.sin(angle(i)))]),
    values: points.map((i) => [round((0.25 + i / 25) * Math.cos(2.4 * i)), round((0.25 + i / 25) * Math.sin(2.4 * i))]),
  };
};

const WORKED = {
  keys: [[0.47, 0.65, 0.6], [0.64, 0.5, -0.59], [-0.03, -0.48, -0.88], [0.43, -0.83, 0.35]],
  values: [[-0.07, -0.88, 0.47], [0.37, -0.93, -0.07], [-0.25, -0.75, 0.61], [0.94, 0.2, 0.28]],
};

/**
 * @typedef {object} Preset
 * @property {string} name
 * @property {string} title
 * @property {string} note  what to try
 * @property {Omit<Configuration, "scaled" | "target">} configuration
 */

/** @type {Preset[]} */
export const PRESETS = [
  {
    name: "square",
    title: "Four keys",
    note: "Turn the query towards a key, then raise the query scale: the weights move from an average to a copy.",
    configuration: {
      keys: [[0.9, 0.3], [0.1, 0.95], [-0.85, 0.1], [-0.1, -0.8]],
      values: [[0.8, 0.6], [-0.6, 0.8], [-0.8, -0.5], [0.7, -0.7]],
      direction: [0.6, 0.5],
      scale: 2,
    },
  },
  {
    name: "orthonormal",
    title: "Orthonormal keys",
    note: "The query C·(k₀ + k₁) averages the two values; turn it a little at a large C, and one of them is lost.",
    configuration: {
      keys: [[1, 0], [0, 1]],
      values: [[1, 0.2], [-0.4, 0.9]],
      direction: [0.7, 0.7],
      scale: 10,
    },
  },
  {
    name: "inside",
    title: "A key inside the hull",
    note: "Key 3 lies between the others, so it never leads. Ask the solver for value 3: it proves that there is no query.",
    configuration: {
      keys: [[0.9, -0.5], [-0.9, -0.5], [0, 0.9], [0, 0]],
      values: [[0.9, -0.6], [-0.9, -0.6], [0, 0.9], [0.5, 0.4]],
      direction: [0.3, 0.4],
      scale: 3,
    },
  },
  {
    name: "worked",
    title: "The worked exercise, 3 dimensions",
    note: "The unscaled mean of k₀ and k₁ misses the average of v₀ and v₁ by 0.186. Set the query scale to 10: it comes within 0.003.",
    configuration: { ...WORKED, direction: [0.555, 0.575, 0.005], scale: 1 },
  },
  {
    name: "twenty",
    title: "Twenty points",
    note: "All keys have the same length, so each can be selected; with many keys the margin must be larger.",
    configuration: { ...twenty(), direction: [0.5, 0.3], scale: 5 },
  },
];

/**
 * @param {Preset} preset
 * @returns {Configuration}
 */
export const configurationOf = ({ configuration }) => ({
  ...structuredClone(configuration),
  scaled: false,
  target: center(configuration.values),
});

/**
 * Whether two configurations have the same keys and values.
 * @param {Pick<Configuration, "keys" | "values">} one
 * @param {Pick<Configuration, "keys" | "values">} other
 */
export const samePoints = (one, other) => writeRows(one.keys) === writeRows(other.keys) && writeRows(one.values) === writeRows(other.values);

/**
 * The preset that is shown unchanged, if any.
 * @param {Configuration} configuration
 */
export const presetOf = (configuration) => {
  const text = JSON.stringify(writeConfiguration(configuration));
  return PRESETS.find((preset) => JSON.stringify(writeConfiguration(configurationOf(preset))) === text);
};
