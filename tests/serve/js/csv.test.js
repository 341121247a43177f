import assert from "node:assert/strict";
import { test } from "node:test";
import { asCsv, csvCell } from "../../../src/attnlab/serve/static/lib/csv.js";

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
