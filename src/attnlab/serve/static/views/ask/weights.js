// Maps of attention: decoding, averages, rows, and the shapes that draw them. Pure functions.

/**
 * @typedef {object} Layer
 * @property {string} mechanism
 * @property {"pattern" | "influence"} kind  whether the maps are attention weights, or one influence for all heads
 * @property {Float32Array[]} maps  one per head, rows of tokens by columns of tokens
 */
/**
 * @typedef {object} Look
 * @property {string[]} tokens
 * @property {Layer[]} layers
 * @property {[number | null, string | null][]} read  the probability of each token, and the one that was expected
 */
/** @typedef {{ layer: number, head: number }} Choice  counted from 1; 0 is the average over layers or heads */
/** @typedef {{ place: number, weight: number }} Weight */

const LEVELS = 32767;

/**
 * The maps that the server packed: 16-bit steps of a scale, up to the diagonal if the future is not seen.
 * @param {{ scales: number[], causal: boolean, weights: string }} layer
 * @param {number} size
 */
export const unpack = ({ scales, causal, weights }, size) => {
  const bytes = Uint8Array.from(atob(weights), (letter) => letter.charCodeAt(0));
  const view = new DataView(bytes.buffer);
  const each = causal ? (size * (size + 1)) / 2 : size * size;
  return scales.map((scale, head) => {
    const map = new Float32Array(size * size);
    let next = head * each;
    for (let row = 0; row < size; row++) {
      for (let column = 0; column < (causal ? row + 1 : size); column++) {
        map[row * size + column] = (view.getInt16(2 * next++, true) / LEVELS) * scale;
      }
    }
    return map;
  });
};

/** @param {any} sent @returns {Look} */
export const asLook = (sent) => ({
  tokens: sent.tokens,
  read: sent.read,
  layers: sent.layers.map((/** @type {any} */ layer) => ({
    mechanism: layer.mechanism,
    kind: layer.kind,
    maps: unpack(layer, sent.tokens.length),
  })),
});

/** @param {Float32Array[]} maps */
export const mean = (maps) => {
  const total = new Float32Array(maps[0].length);
  for (const map of maps) for (let place = 0; place < total.length; place++) total[place] += map[place] / maps.length;
  return total;
};

/**
 * The layers that a choice is about: one, or for the average of all those with patterns, or all if none has.
 * @param {Look} look
 * @param {Choice} choice
 */
export const layersOf = (look, { layer }) => {
  if (layer) return [look.layers[layer - 1]];
  const readable = look.layers.filter((one) => one.kind === "pattern");
  return readable.length ? readable : look.layers;
};

/**
 * The chosen map: of a head, or the average over heads or over everything.
 * @param {Look} look
 * @param {Choice} choice
 */
export const mapOf = (look, choice) => {
  const layers = layersOf(look, choice);
  if (choice.layer && choice.head) return layers[0].maps[Math.min(choice.head, layers[0].maps.length) - 1];
  return mean(layers.map((one) => (one.maps.length === 1 ? one.maps[0] : mean(one.maps))));
};

/** Whether a choice shows an influence. @param {Look} look @param {Choice} choice */
export const isInfluence = (look, choice) => layersOf(look, choice)[0].kind === "influence";

/** A choice within what a model has. @param {Look} look @param {Choice} choice @returns {Choice} */
export const within = (look, { layer, head }) => {
  if (!(layer >= 1 && layer <= look.layers.length)) return { layer: 0, head: 0 };
  const heads = look.layers[layer - 1].maps.length;
  return { layer, head: heads === 1 ? 1 : head >= 1 && head <= heads ? head : 0 };
};

/** @param {Look} look @param {Choice} choice */
export const nameOf = (look, choice) => {
  if (!choice.layer) return "Average of all layers and heads";
  const layer = look.layers[choice.layer - 1];
  if (layer.kind === "influence") return `Layer ${choice.layer}, influence of all heads`;
  return choice.head ? `Layer ${choice.layer}, head ${choice.head}` : `Layer ${choice.layer}, average of ${layer.maps.length} heads`;
};

/**
 * What a token looks at (its row), or which tokens look at it (its column).
 * @param {Float32Array} map
 * @param {number} size
 * @param {number} token
 * @param {boolean} [incoming]
 */
export const weightsAt = (map, size, token, incoming = false) =>
  Array.from({ length: size }, (_, other) => map[incoming ? other * size + token : token * size + other]);

/**
 * The places of the largest weights, by size.
 * @param {number[]} weights
 * @param {number} count
 * @returns {Weight[]}
 */
export const strongest = (weights, count) =>
  weights
    .map((weight, place) => ({ place, weight }))
    .filter(({ weight }) => weight !== 0)
    .sort((one, other) => Math.abs(other.weight) - Math.abs(one.weight))
    .slice(0, count);

/**
 * The weight that is drawn darkest: the largest, but for the first row, which has only one token to look at.
 * @param {Float32Array} map
 * @param {number} size
 */
export const peakOf = (map, size) =>
  map.reduce((most, weight, place) => (place < size && size > 1 ? most : Math.max(most, Math.abs(weight))), 1e-30);

/**
 * A map as paths of unit squares, one path per level of darkness, so that large maps stay few elements.
 * @param {Float32Array} map
 * @param {number} size
 * @param {number} [count]  levels
 * @returns {{ opacity: number, negative: boolean, path: string }[]}
 */
export const shades = (map, size, count = 16) => {
  const peak = peakOf(map, size);
  /** @type {string[][]} */
  const paths = Array.from({ length: 2 * count + 2 }, () => []);
  for (let row = 0; row < size; row++) {
    for (let column = 0; column < size; column++) {
      const weight = map[row * size + column];
      const level = Math.min(count, Math.round((Math.abs(weight) / peak) * count));
      if (level) paths[weight < 0 ? count + level : level].push(`M${column} ${row}h1v1h-1z`);
    }
  }
  return paths.flatMap((path, level) =>
    path.length ? [{ opacity: (level > count ? level - count : level) / count, negative: level > count, path: path.join("") }] : []);
};

/** A token as it is shown. @param {string} token */
export const shown = (token) => token.replace(/^ /, "").replaceAll("\n", "⏎").replaceAll("\t", "⇥") || "␣";

/** Whether a token begins a word. @param {string} token @param {number} place */
export const begins = (token, place) => place === 0 || /^\s/.test(token) || /^[⁇□]/.test(token);

/** @typedef {{ x: number, top: number, bottom: number }} Spot */

/**
 * The line of an arc between two tokens: above them if they share a line, else from one line to the other.
 * @param {Spot} from
 * @param {Spot} to
 * @param {number} room  height above a line
 */
export const arc = (from, to, room) => {
  const number = (/** @type {number} */ value) => Math.round(10 * value) / 10;
  if (Math.abs(from.top - to.top) < 2) {
    const distance = Math.abs(from.x - to.x);
    if (distance < 1) {
      const top = number(from.top - room * 0.45);
      return `M${number(from.x - 4)} ${number(from.top)}C${number(from.x - 9)} ${top} ${number(from.x + 9)} ${top} ${number(from.x + 4)} ${number(from.top)}`;
    }
    const high = number(from.top - Math.min(room * 1.25, 10 + distance * 0.28));
    return `M${number(from.x)} ${number(from.top)}C${number(from.x)} ${high} ${number(to.x)} ${high} ${number(to.x)} ${number(to.top)}`;
  }
  const down = from.top < to.top;
  const [start, end] = down ? [from.bottom, to.top] : [from.top, to.bottom];
  const middle = number((start + end) / 2);
  return `M${number(from.x)} ${number(start)}C${number(from.x)} ${middle} ${number(to.x)} ${middle} ${number(to.x)} ${number(end)}`;
};
