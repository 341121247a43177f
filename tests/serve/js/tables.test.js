import assert from "node:assert/strict";
import { test } from "node:test";
import { asCsv, asLatex, csvCell, escaped } from "../../../src/attnlab/serve/static/lib/tables.js";

test("numbers stay numbers, with the sign that spreadsheets know", () => {
  assert.deepEqual(["−0.5", "+3", "-1e-5", "12 %", "−4%", "7"].map(csvCell), ["-0.5", "+3", "-1e-5", "12 %", "-4%", "7"]);
  assert.equal(csvCell("1,234"), '"1,234"');
});

test("a text that starts like a formula is marked as text", () => {
  for (const text of ["=1+1", "+cmd", "@a", "-2+3", "−x", "-1+cmd|'/c calc'!A0"]) assert.equal(csvCell(text)[0], "'");
  assert.equal(csvCell('=A("x")'), '"\'=A(""x"")"');
});

test("rows end as RFC 4180 says", () => {
  assert.equal(asCsv([["a", 'b "c"'], ["1", "x\ny"]]), 'a,"b ""c"""\r\n1,"x\ny"\r\n');
});

test("symbols that LaTeX does not take as they are", () => {
  assert.equal(escaped("50 % & a_b"), "50 \\% \\& a\\_b");
  assert.equal(escaped("q·k/√d ≤ 1"), "q$\\cdot$k/$\\surd$d $\\le$ 1");
  assert.equal(escaped("k₁₀ 2e⁻ᵐ"), "k$_{10}$ 2e$^{-m}$");
  assert.deepEqual(["-0.5", "−0.5", "x-y"].map(escaped), ["$-$0.5", "$-$0.5", "x-y"]);
});

test("columns of numbers stand to the right, whichever place they have", () => {
  const text = asLatex([["Model", "Right", "Interval", "Says", "Time"], ["a, with b", "13.3 %", "3.7 to 37.9 %", "Rome, 73 %", "1 s"], ["c", "–", "–", "", "< 0.1 s"]]);
  assert.ok(text.startsWith("\\begin{tabular}{lrrlr}\n\\toprule\nModel & Right"));
  assert.ok(text.includes("a, with b & 13.3 \\% & 3.7 to 37.9 \\% & Rome, 73 \\% & 1 s \\\\\n"));
});
