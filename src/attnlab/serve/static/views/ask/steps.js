// The steps from a text to the next token: which there are, what they show and what their terms mean. Pure functions.
import { shortName } from "./state.js";
import { shown } from "./weights.js";

/** @typedef {{ tap: string, values: number[], guesses: [string, number][], final: number }} Point */
/**
 * @typedef {object} Layer  at the token that is followed, by head; what a mechanism does not have is empty
 * @property {string} mechanism
 * @property {string} kind
 * @property {number[][]} weights  of all tokens
 * @property {number[][]} products  of the query with every key up to the token
 * @property {number[][]} queries
 * @property {number[][]} rows  the tokens whose keys and values are sent
 * @property {number[][][]} keys
 * @property {number[][][]} values
 * @property {number[][]} outputs
 * @property {boolean} softmax
 * @property {boolean} averages
 * @property {number[]} attention
 * @property {number[]} hidden
 * @property {number[]} mlp
 */
/**
 * @typedef {object} Trace
 * @property {string[]} tokens
 * @property {number[]} ids
 * @property {number} given
 * @property {number} token
 * @property {number[][]} embeddings
 * @property {number[]} position
 * @property {Point[]} points
 * @property {Layer[]} layers
 * @property {number[]} scores
 */
/** @typedef {"tokens" | "embedding" | "keys" | "weights" | "values" | "influence" | "attention" | "mlp" | "prediction"} Kind */
/** @typedef {{ kind: Kind, layer: number, point: number }} Step  the layer from 0, and the point that the step leads to or starts from */

const NAMES = { tokens: "Tokens", embedding: "Embedding", keys: "query and keys", weights: "scores to weights", values: "weights to values", influence: "influence", attention: "Attention joins the stream", mlp: "The MLP joins the stream", prediction: "Prediction" };

/** All steps, in order. @param {Trace} trace @returns {Step[]} */
export const stepsOf = (trace) => {
  let point = 0;
  const steps = trace.layers.flatMap((layer, number) => {
    const seen = layer.kind === "influence" ? ["influence"] : [...(layer.keys[0][0]?.length ? ["keys"] : []), "weights", ...(layer.values[0][0]?.length ? ["values"] : [])];
    const parts = [...seen.map((kind) => ({ kind, layer: number, point })), { kind: "attention", layer: number, point: ++point }];
    return layer.mlp.length ? [...parts, { kind: "mlp", layer: number, point: ++point }] : parts;
  });
  return /** @type {Step[]} */ ([{ kind: "tokens", layer: -1, point: 0 }, { kind: "embedding", layer: -1, point: 0 }, ...steps, { kind: "prediction", layer: -1, point }]);
};

/** @typedef {{ name: string, first: number, last: number, point: number | null }} Station  steps that belong together, and the point they lead to */

/** The stations on the way: what is read, every attention and MLP, and the prediction. @param {Step[]} steps @returns {Station[]} */
export const stationsOf = (steps) => {
  /** @type {Station[]} */
  const stations = [];
  steps.forEach(({ kind, layer, point }, number) => {
    const name = layer < 0 ? NAMES[kind] : `${kind === "mlp" ? "MLP" : "Attention"} ${layer + 1}`;
    if (stations.at(-1)?.name !== name) stations.push({ name, first: number, last: number, point: kind === "tokens" ? null : point });
    Object.assign(stations[stations.length - 1], { last: number, point: kind === "tokens" ? null : point });
  });
  return stations;
};

/** @param {Step} step @param {number} head  from 1 */
export const titleOf = ({ kind, layer }, head) => {
  if (layer < 0) return NAMES[kind];
  return `Layer ${layer + 1}${["keys", "weights", "values"].includes(kind) ? `, head ${head}` : ""}: ${NAMES[kind]}`;
};

/** A number with three digits and a proper minus sign. @param {number} value */
export const number = (value) => (Math.abs(value) >= 1000 ? value.toFixed(0) : String(Number(value.toPrecision(3)))).replace("-", "−");

/** The length of a vector. @param {number[]} values */
export const length = (values) => Math.hypot(...values);

/**
 * What a step does, in words; terms between asterisks are explained.
 * @param {Trace} trace @param {Step} step @param {boolean} changed  whether heads of its layer were changed on purpose
 */
export const wordsOf = (trace, { kind, layer: number_ }, changed) => {
  const layer = trace.layers[number_];
  const token = `“${shown(trace.tokens[trace.token])}”`;
  const name = layer && shortName(layer.mechanism);
  switch (kind) {
    case "tokens":
      return `The text is cut into ${trace.tokens.length} pieces: each *token* has a number in the vocabulary. ${trace.tokens[trace.given - 1] === "⁇" ? "“⁇” ends the question and begins the answer. " : ""}We follow ${token}, after which the model predicts the next one.`;
    case "embedding":
      return `Each token becomes a vector of ${trace.points[0].values.length} numbers, its *embedding*. ${trace.position.length ? "A vector for its position is added." : "Nothing is added for its position: attention takes the order into account."} It is the start of the *residual stream*.`;
    case "keys":
      return `From the stream, ${token} makes a *query*, and every token up to it a *key*. ${layer.products[0].length ? "The better the two match, the higher the *score*." : `“${name}” compares them in its own way, so there is no *score* to show.`}`;
    case "weights":
      return layer.softmax
        ? "*softmax* turns the scores into weights: a lead of 1 in *score* is a factor of 2.7 in *weight*. They sum to 100 %."
        : `“${name}” makes the *weight* of every token in its own way${layer.products[0].length ? ", not by *softmax* of these scores alone" : ""}; the numbers are those that it used.`;
    case "values":
      return `Every token’s *value* counts with its *weight*. ${layer.averages ? "Their sum is what the head passes on." : changed ? "What the head passes on was changed." : `“${name}” then changes the sum in a way of its own before the head passes it on.`}`;
    case "influence":
      return `“${name}” has no weights over tokens. Its *influence* is shown instead: how strongly its output at ${token} changes with each token, as shares.`;
    case "attention":
      return `The outputs of all ${layer.weights.length > 1 ? `${layer.weights.length} heads` : "heads"} go through one linear map and are added to the *residual stream*. With the *logit lens* we see what the model would predict if it ended here.`;
    case "mlp":
      return `The *MLP* reads the stream of ${token} alone and adds to it. ${layer.hidden.length.toLocaleString("en")} hidden units, of which ${layer.hidden.filter((unit) => unit > 0).length.toLocaleString("en")} are above zero.`;
    default:
      return "The last stream is compared with every token of the vocabulary. *softmax* makes probabilities of each *logit*. The table shows the *logit lens*: the prediction after every step.";
  }
};

/** A text in parts: plain, or a term. @param {string} text @returns {{ text: string, term: boolean }[]} */
export const partsOf = (text) => text.split("*").map((part, place) => ({ text: part, term: place % 2 === 1 })).filter((part) => part.text);

/** Cells of a vector by darkness, as paths of unit squares in one row. @param {number[]} values @param {number} peak  drawn darkest */
export const cellsOf = (values, peak) => {
  const levels = 12;
  /** @type {Map<number, string>} */
  const paths = new Map();
  values.forEach((value, place) => {
    const level = Math.sign(value) * Math.min(levels, Math.round((Math.abs(value) / (peak || 1)) * levels));
    if (level) paths.set(level, `${paths.get(level) ?? ""}M${place} 0h1v1h-1z`);
  });
  return [...paths].map(([level, path]) => ({ opacity: Math.abs(level) / levels, negative: level < 0, path }));
};
