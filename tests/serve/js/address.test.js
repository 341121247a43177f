import assert from "node:assert/strict";
import { test } from "node:test";
import { pack, unpack } from "../../../src/attnlab/serve/static/lib/address.js";

test("a packed text comes back, in letters that an address takes as they are", async () => {
  for (const text of ["", "x", '[[task]]\nname = "größe ≥ 3"\n'.repeat(200), "\u{1f600}"]) {
    const packed = await pack(text);
    assert.match(packed, /^[\w-]*$/);
    assert.equal(await unpack(packed), text);
  }
});

test("a repetitive sheet becomes short, and a damaged one is refused", async () => {
  const packed = await pack("keys = [[1, 0], [0, 1]]\n".repeat(100));
  assert.ok(packed.length < 200);
  await assert.rejects(unpack("damaged"));
  await assert.rejects(unpack(packed.slice(0, 20)));
});
