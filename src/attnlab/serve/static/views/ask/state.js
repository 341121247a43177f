// What the address of the view holds, and interventions in words. Pure functions.

/**
 * @typedef {object} Change  layers, heads and tokens count from 0, as in the model; null is all
 * @property {number} layer
 * @property {string} tap
 * @property {number | null} head
 * @property {number | null} position
 * @property {"zero" | "mean" | "text"} by
 * @property {string} other
 */
/**
 * @typedef {object} State
 * @property {string} run
 * @property {"ask" | "continue"} mode
 * @property {string} text
 * @property {number} risk
 * @property {number} layer  from 1; 0 is the average of all
 * @property {number} head  from 1; 0 is the average of the layer
 * @property {number | null} token  the locked token, from 0
 * @property {boolean} incoming
 * @property {number} step  of the way through the model, from 0
 * @property {Change[]} changes
 */

export const TAPS = /** @type {Record<string, string>} */ ({
  z: "output of a head",
  attn_out: "output of attention",
  mlp_out: "output of the MLP",
  resid_pre: "residual stream before the layer",
  resid_mid: "residual stream after attention",
  resid_post: "residual stream after the layer",
});

/** @param {string | undefined} text @param {number} otherwise */
const whole = (text, otherwise) => (text !== undefined && /^\d{1,6}$/.test(text) ? Number(text) : otherwise);

/** @param {string | undefined} text @returns {Change[]} */
const readChanges = (text) => {
  try {
    const found = JSON.parse(text ?? "[]");
    return Array.isArray(found) ? found.flatMap(asChange).slice(0, 64) : [];
  } catch {
    return [];
  }
};

/** A change that the server accepts, or none. @param {any} given @returns {Change[]} */
const asChange = (given) => {
  const count = (/** @type {unknown} */ value) => (Number.isInteger(value) && Number(value) >= 0 ? Number(value) : null);
  const layer = count(given?.layer);
  if (layer === null || !Object.hasOwn(TAPS, given.tap) || !["zero", "mean", "text"].includes(given.by)) return [];
  return [{ layer, tap: given.tap, head: count(given.head), position: count(given.position), by: given.by, other: String(given.other ?? "") }];
};

/** @param {Record<string, string>} query @returns {State} */
export const parse = (query) => {
  const risk = Number(query.risk);
  return {
    run: query.run ?? "",
    mode: query.mode === "continue" ? "continue" : "ask",
    text: query.q ?? "",
    risk: risk > 0 && risk < 1 ? risk : 0.1,
    layer: query.layer === "all" ? 0 : whole(query.layer, 1),
    head: query.head === "mean" ? 0 : whole(query.head, 1),
    token: query.token === undefined ? null : whole(query.token, 0),
    incoming: query.direction === "in",
    step: whole(query.step, 0),
    changes: readChanges(query.changes),
  };
};

/** @param {State} state */
export const serialise = (state) => ({
  run: state.run,
  mode: state.mode === "ask" ? "" : state.mode,
  q: state.text,
  risk: state.risk === 0.1 ? "" : state.risk,
  layer: state.layer || "all",
  head: state.layer ? state.head || "mean" : "",
  token: state.token,
  direction: state.incoming ? "in" : "",
  step: state.step || "",
  changes: state.changes.length ? JSON.stringify(state.changes) : "",
});

/** Mechanisms by name; of a class of one's own, FILE:CLASS, the class. @param {string} mechanisms */
export const shortName = (mechanisms) => mechanisms.replace(/[^,]*:(\w+)/g, (found, name) => (/^\s/.test(found) ? ` ${name}` : name));

/** A change in words. @param {Change} change @param {string[]} tokens */
export const inWords = (change, tokens) => {
  const head = change.tap === "z" ? (change.head === null ? "all heads" : `head ${change.head + 1}`) : TAPS[change.tap];
  const what = `layer ${change.layer + 1}, ${head}`;
  const place = change.position === null ? "" : ` at token ${change.position + 1} “${(tokens[change.position] ?? "").trim()}”`;
  if (change.by === "zero" && change.tap === "z") return `Switch off ${what}${place}`;
  const by = { zero: "by zeros", mean: "by its mean over this text", text: `by that of “${change.other}”` }[change.by];
  return `Replace ${what}${place} ${by}`;
};

/** The place of the risk that is nearest to the wanted one. @param {number[]} risks @param {number} wanted */
export const nearestRisk = (risks, wanted) =>
  risks.reduce((best, risk, place) => (Math.abs(risk - wanted) < Math.abs(risks[best] - wanted) ? place : best), 0);

/** A difference of probabilities in percentage points. @param {number} difference */
export const points = (difference) => {
  const rounded = (100 * difference).toFixed(1);
  return Number(rounded) === 0 ? "0.0" : `${difference > 0 ? "+" : "−"}${rounded.replace("-", "")}`;
};

/** A small probability is not shown as zero. @param {number | null | undefined} share */
export const chance = (share) => {
  if (share === null || share === undefined) return "–";
  if (share < 0.001 && share > 0) return "< 0.1 %";
  return `${(share < 1 ? Math.min(100 * share, 99.9) : 100).toFixed(1)} %`;
};

/** A weight as a percentage, with a proper minus sign. @param {number} weight @param {number} [digits] */
export const weightInWords = (weight, digits = 1) => `${(100 * weight).toFixed(digits).replace("-", "−")} %`;
