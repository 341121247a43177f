import assert from "node:assert/strict";
import { test } from "node:test";
import { asLatex, escaped } from "../../../src/attnlab/serve/static/lib/latex.js";

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
