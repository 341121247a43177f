// Numbers and names for reading.

/** @param {number} i */
const subscript = (i) => [...String(i)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]).join("");

/** The letter of a point with its number, such as k₀. @param {string} letter @param {number} i */
export const named = (letter, i) => letter + subscript(i);

/** A statement of the solver with real subscripts, such as k₀ for k_0. @param {string} text */
export const withSubscripts = (text) => text.replace(/\b([akv])_(\d+)/g, (_, letter, i) => named(letter, Number(i)));

/** A number for reading. @param {number} x @param {number} [digits] */
export const shown = (x, digits = 3) => {
  if (!Number.isFinite(x)) return "∞";
  const size = Math.abs(x);
  const text = x !== 0 && (size < 0.001 || size >= 1e5) ? x.toExponential(1) : String(Number(x.toFixed(size >= 100 ? 1 : digits)));
  return text.replaceAll("-", "−").replace("e+", "e");
};

/** A weight, always as wide. @param {number} x */
export const shownWeight = (x) => (x > 0 && x < 0.0005 ? x.toExponential(0).replace("-", "−") : x.toFixed(3));

/** @param {number[]} vector */
export const shownVector = (vector) => `(${vector.map((x) => shown(x)).join(", ")})`;

/** The file of answers, where no server writes it: arrays and tables as typed, everything else as an expression. @param {Record<string, string>} answers */
export const asToml = (answers) =>
  Object.entries(answers).map(([name, typed]) => [name, typed.trim()]).filter(([, typed]) => typed)
    .map(([name, typed]) => `${JSON.stringify(name)} = ${/^(\[.*\]|\{.*\})$/.test(typed) ? typed : JSON.stringify(typed)}\n`).join("");
