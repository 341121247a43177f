import assert from "node:assert/strict";
import { test } from "node:test";
import { termOf } from "../../../src/attnlab/serve/static/lib/glossary.js";
import { cellsOf, length, number, partsOf, stationsOf, stepsOf, titleOf, wordsOf } from "../../../src/attnlab/serve/static/views/ask/steps.js";

const bare = { weights: [[0.75, 0.25]], products: [[]], queries: [[]], rows: [[0, 1]], keys: [[[], []]], values: [[[], []]], outputs: [[]] };
const heads = { ...bare, products: [[1, 0]], queries: [[1]], keys: [[[1], [0]]], values: [[[2], [4]]], outputs: [[2.5]] };
const layer = { mechanism: "dot", kind: "pattern", ...heads, softmax: true, averages: true, attention: [1], hidden: [1, -1, 0], mlp: [2] };
const point = { tap: "", values: [1], guesses: /** @type {[string, number][]} */ ([["x", 0.5]]), final: 0.5 };
const trace = {
  tokens: ["a", "⁇", "x"], ids: [1, 2, 3], given: 2, token: 1, embeddings: [[1]], position: [], points: [point, point, point, point], scores: [1],
  layers: [layer, { ...layer, mechanism: "f.py:Mine", kind: "influence", ...bare, mlp: [], softmax: false, averages: false }],
};

test("every part of every layer is a step that knows the point of the stream that it leads to", () => {
  assert.deepEqual(stepsOf(trace).map(({ kind, layer: place, point: at }) => [kind, place, at]), [
    ["tokens", -1, 0], ["embedding", -1, 0], ["keys", 0, 0], ["weights", 0, 0], ["values", 0, 0], ["attention", 0, 1], ["mlp", 0, 2],
    ["influence", 1, 2], ["attention", 1, 3], ["prediction", -1, 3],
  ]);
  const opaque = { ...trace, layers: [{ ...layer, ...bare }] };
  assert.deepEqual(stepsOf(opaque).map(({ kind }) => kind), ["tokens", "embedding", "weights", "attention", "mlp", "prediction"]);
});

test("steps that belong together are one station, which shows where its last step leads", () => {
  assert.deepEqual(stationsOf(stepsOf(trace)), [
    { name: "Tokens", first: 0, last: 0, point: null }, { name: "Embedding", first: 1, last: 1, point: 0 },
    { name: "Attention 1", first: 2, last: 5, point: 1 }, { name: "MLP 1", first: 6, last: 6, point: 2 },
    { name: "Attention 2", first: 7, last: 8, point: 3 }, { name: "Prediction", first: 9, last: 9, point: 3 },
  ]);
});

test("what a step says follows from what was measured", () => {
  const [tokens, embedding, keys, weights, values, , mlp, influence] = stepsOf(trace);
  assert.match(wordsOf(trace, tokens, false), /3 pieces.*“⁇” ends the question/);
  assert.match(wordsOf(trace, embedding, false), /Nothing is added for its position/);
  assert.match(wordsOf({ ...trace, position: [1] }, embedding, false), /A vector for its position is added/);
  assert.match(wordsOf(trace, keys, false), /the higher the \*score\*/);
  assert.match(wordsOf(trace, weights, false), /They sum to 100 %/);
  assert.match(wordsOf(trace, values, false), /Their sum is what the head passes on/);
  assert.match(wordsOf(trace, mlp, false), /3 hidden units, of which 1 are/);
  assert.match(wordsOf(trace, influence, false), /“Mine” has no weights/);
  const other = { ...trace, layers: [{ ...layer, mechanism: "retnet", softmax: false, averages: false }] };
  assert.match(wordsOf(other, weights, false), /“retnet” makes.*not by \*softmax\*/);
  assert.match(wordsOf(other, values, false), /in a way of its own/);
  assert.match(wordsOf(other, values, true), /was changed/);
  assert.equal(titleOf(keys, 2), "Layer 1, head 2: query and keys");
  assert.equal(titleOf(mlp, 2), "Layer 1: The MLP joins the stream");
});

test("every term that a step marks is explained", () => {
  const marked = stepsOf(trace).flatMap((step) => partsOf(wordsOf(trace, step, false))).filter((part) => part.term);
  assert.ok(marked.length > 10);
  for (const { text } of marked) assert.ok(termOf(text) >= 0, text);
  assert.deepEqual(partsOf("*key* of a"), [{ text: "key", term: true }, { text: " of a", term: false }]);
});

test("numbers are short, and vectors become cells by sign and size", () => {
  assert.deepEqual([number(0.123456), number(-12.34), number(12345.6), number(0)], ["0.123", "−12.3", "12346", "0"]);
  assert.equal(length([3, 4]), 5);
  assert.deepEqual(cellsOf([2, -1, 0, 2], 2), [{ opacity: 1, negative: false, path: "M0 0h1v1h-1zM3 0h1v1h-1z" }, { opacity: 0.5, negative: true, path: "M1 0h1v1h-1z" }]);
});
