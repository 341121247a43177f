// Comma-separated values that spreadsheets read as they are meant.

/** A cell: numbers stay numbers, and a text that a spreadsheet would run as a formula is marked as text. @param {string} text */
export const csvCell = (text) => {
  const plain = text.replaceAll("−", "-");
  const number = /^[-+]?[\d.,]+(e[-+]?\d+)?( ?%)?$/i.test(plain);
  const safe = !number && /^[=+@\t\r-]/.test(plain) ? `'${plain}` : plain;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
};

/** @param {string[][]} rows */
export const asCsv = (rows) => rows.map((row) => row.map(csvCell).join(",") + "\r\n").join("");
