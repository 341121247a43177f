// Tables as files: comma-separated values that spreadsheets read as they are meant, and LaTeX with the package booktabs.

/** A cell: numbers stay numbers, and a text that a spreadsheet would run as a formula is marked as text. @param {string} text */
export const csvCell = (text) => {
  const plain = text.replaceAll("−", "-");
  const number = /^[-+]?[\d.,]+(e[-+]?\d+)?( ?%)?$/i.test(plain);
  const safe = !number && /^[=+@\t\r-]/.test(plain) ? `'${plain}` : plain;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

/** @param {string[][]} rows */
export const asCsv = (rows) => rows.map((row) => row.map(csvCell).join(",") + "\r\n").join("");

/** @type {Record<string, string>} */
const SPECIAL = {
  "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$", "−": "$-$",
  "≤": "$\\le$", "≥": "$\\ge$", "≈": "$\\approx$", "±": "$\\pm$", "×": "$\\times$", "÷": "$\\div$", "·": "$\\cdot$", "√": "$\\surd$",
  "∞": "$\\infty$", "→": "$\\to$", "←": "$\\leftarrow$", "⊗": "$\\otimes$", "∅": "$\\emptyset$", "α": "$\\alpha$", "λ": "$\\lambda$", "Σ": "$\\Sigma$",
  "–": "--", "…": "\\ldots{}", "“": "``", "”": "''", "’": "'", "⁇": "??", "□": "[]", "⏎": "$\\hookleftarrow$", "␣": "\\textvisiblespace{}", "⇥": "$\\mapsto$",
};
const LOW = "₀₁₂₃₄₅₆₇₈₉", HIGH = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵐᵀ";

/** @param {string} text */
export const escaped = (text) =>
  text
    .replace(/^-(?=[\d.])/, "−")
    .replace(/[\\&%$#_{}~^<>|−≤≥≈±×÷·√∞→←⊗∅αλΣ–…“”’⁇□⏎␣⇥]/g, (letter) => SPECIAL[letter] ?? `\\${letter}`)
    .replace(/[₀-₉]+/g, (found) => `$_{${[...found].map((letter) => LOW.indexOf(letter)).join("")}}$`)
    .replace(/[⁰¹²³⁴-⁹⁻ᵐᵀ]+/g, (found) => `$^{${[...found].map((letter) => "0123456789-mT"[HIGH.indexOf(letter)]).join("")}}$`);

/** Whether a cell holds a number, perhaps with a unit or an interval. @param {string} text */
const isNumber = (text) => /^[^\p{L}\d]*\d/u.test(text) && (text.match(/\p{L}/gu)?.length ?? 0) <= 4;

/** Rows of cells, of which the first are the names of the columns; columns of numbers stand to the right. @param {string[][]} rows */
export const asLatex = (rows) => {
  const [head, ...body] = rows;
  const columns = head.map((_, place) => {
    const filled = body.map((row) => row[place] ?? "").filter((cell) => !/^[–-]?$/.test(cell));
    return filled.length && filled.every(isNumber) ? "r" : "l";
  });
  const [first, ...others] = rows.map((row) => row.map(escaped).join(" & ") + " \\\\");
  return [`\\begin{tabular}{${columns.join("")}}`, "\\toprule", first, "\\midrule", ...others, "\\bottomrule", "\\end{tabular}", ""].join("\n");
};
