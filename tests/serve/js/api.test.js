import assert from "node:assert/strict";
import { createServer } from "node:http";
import { after, before, test } from "node:test";
import { ApiError, stream } from "../../../src/attnlab/serve/static/lib/api.js";

const answers = {
  "/api/whole": (response) => response.end('{"a":1}\n{"a":2}\n'),
  "/api/cut": (response) => response.end('{"a":1}\n{"a":'),
  "/api/broken": (response) => response.write('{"a":1}\n', () => setTimeout(() => response.destroy(), 50)),
  "/api/late": (response) => response.end('{"a":1}\n{"error":"The worker ended.","status":504}\n'),
  "/api/refused": (response) => response.writeHead(429, { "Content-Type": "application/json" }).end('{"error":"Busy: try again."}'),
};
const server = createServer((request, response) => answers[request.url](response));
const { fetch } = globalThis;

before(() => new Promise((listening) => server.listen(0, "127.0.0.1", listening)));
before(() => { globalThis.fetch = (path, options) => fetch(`http://127.0.0.1:${server.address().port}${path}`, options); });
after(() => {
  globalThis.fetch = fetch;
  server.closeAllConnections();
  server.close();
});

const received = async (path) => {
  const lines = [];
  const error = await stream(path, {}, (line) => lines.push(line.a)).then(() => null, (problem) => problem);
  return { lines, error };
};

test("lines arrive one by one", async () => {
  assert.deepEqual(await received("whole"), { lines: [1, 2], error: null });
});

test("an answer that ends too early is an error", async () => {
  for (const path of ["cut", "broken"]) {
    const { lines, error } = await received(path);
    assert.deepEqual(lines, [1]);
    assert.ok(error instanceof ApiError);
    assert.match(error.message, /ended too early/);
  }
});

test("an error is the answer, or its last line", async () => {
  const late = await received("late"), refused = await received("refused");
  assert.deepEqual([late.lines, late.error.message, late.error.status], [[1], "The worker ended.", 504]);
  assert.deepEqual([refused.lines, refused.error.message, refused.error.status], [[], "Busy: try again.", 429]);
});
