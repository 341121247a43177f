import assert from "node:assert/strict";
import { test } from "node:test";
import { here } from "../../../src/attnlab/serve/static/lib/address.js";
import { TERMS, termOf } from "../../../src/attnlab/serve/static/lib/glossary.js";
import { asToml } from "../../../src/attnlab/serve/static/views/design/format.js";

test("addresses are below the folder of the page, and folders themselves on a static site", () => {
  assert.equal(here("/runs?q=1"), "/runs?q=1");
  assert.equal(here("/runs?q=1", "/course/lab/", true), "/course/lab/runs/?q=1");
  assert.equal(here("/", "/course/lab/", true), "/course/lab/");
});

test("answers are saved as attnlab check reads them", () => {
  assert.equal(asToml({ one: " [1, 2] ", two: "10*K[0]", three: "", four: '{Q = "I"}' }), '"one" = [1, 2]\n"two" = "10*K[0]"\n"four" = {Q = "I"}\n');
});

test("a term is known in singular and plural, and each is explained in a sentence", () => {
  assert.equal(termOf("queries"), termOf("Query"));
  assert.equal(termOf("keyboard"), -1);
  for (const [, meaning] of TERMS) assert.match(meaning, /^[A-Z0-9e].*\.$/);
});
