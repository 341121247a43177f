import assert from "node:assert/strict";
import { test } from "node:test";
import { chance, inWords, nearestRisk, parse, points, serialise, shortName } from "../../../src/attnlab/serve/static/views/ask/state.js";
import { arc, asLook, begins, mapOf, mean, nameOf, peakOf, shades, shown, strongest, unpack, weightsAt, within } from "../../../src/attnlab/serve/static/views/ask/weights.js";

const pack = (/** @type {number[]} */ steps) => Buffer.from(Int16Array.from(steps).buffer).toString("base64");
const look = asLook({
  tokens: [" a", "b"],
  read: [[null, null], [0.5, "b"]],
  layers: [
    { mechanism: "dot", kind: "pattern", causal: true, scales: [1, 1], weights: pack([32767, 0, 32767, 32767, 32767, 0]) },
    { mechanism: "mine", kind: "influence", causal: true, scales: [0.5], weights: pack([32767, 32767, 0]) },
  ],
});

test("maps are unpacked up to the diagonal, or whole", () => {
  assert.deepEqual(look.layers[0].maps.map((map) => [...map]), [[1, 0, 0, 1], [1, 0, 1, 0]]);
  assert.deepEqual([...look.layers[1].maps[0]], [0.5, 0, 0.5, 0]);
  assert.deepEqual([...unpack({ scales: [2], causal: false, weights: pack([32767, -32767, 0, 32767]) }, 2)[0]], [2, -2, 0, 2]);
});

test("averages are over the heads of a layer, or over the layers that have patterns", () => {
  assert.deepEqual([...mean(look.layers[0].maps)], [1, 0, 0.5, 0.5]);
  assert.deepEqual([...mapOf(look, { layer: 0, head: 0 })], [1, 0, 0.5, 0.5]);
  assert.deepEqual([...mapOf(look, { layer: 2, head: 1 })], [0.5, 0, 0.5, 0]);
  assert.equal(nameOf(look, { layer: 2, head: 1 }), "Layer 2, influence of all heads");
});

test("a choice stays within the model", () => {
  assert.deepEqual(within(look, { layer: 9, head: 1 }), { layer: 0, head: 0 });
  assert.deepEqual(within(look, { layer: 1, head: 9 }), { layer: 1, head: 0 });
  assert.deepEqual(within(look, { layer: 2, head: 5 }), { layer: 2, head: 1 });
});

test("rows and columns, and their strongest weights", () => {
  const map = Float32Array.from([1, 0, 0.25, -0.75]);
  assert.deepEqual(weightsAt(map, 2, 1), [0.25, -0.75]);
  assert.deepEqual(weightsAt(map, 2, 0, true), [1, 0.25]);
  assert.deepEqual(strongest([0.25, -0.75, 0], 5), [{ place: 1, weight: -0.75 }, { place: 0, weight: 0.25 }]);
});

test("shades are few paths, scaled by the largest weight below the first row", () => {
  const map = Float32Array.from([1, 0, 0.25, -0.5]);
  assert.equal(peakOf(map, 2), 0.5);
  assert.deepEqual(shades(map, 2, 4), [
    { opacity: 0.5, negative: false, path: "M0 1h1v1h-1z" },
    { opacity: 1, negative: false, path: "M0 0h1v1h-1z" },
    { opacity: 1, negative: true, path: "M1 1h1v1h-1z" },
  ]);
});

test("arcs go over a line, or from one line to another, and around a token itself", () => {
  const [a, b, below] = [{ x: 10, top: 50, bottom: 70 }, { x: 60, top: 50, bottom: 70 }, { x: 30, top: 120, bottom: 140 }];
  assert.equal(arc(a, b, 34), "M10 50C10 26 60 26 60 50");
  assert.equal(arc(below, a, 34), "M30 120C30 95 10 95 10 70");
  assert.match(arc(a, a, 34), /^M6 50C/);
});

test("tokens are shown without their space, and never empty", () => {
  assert.deepEqual([" born", "\n", " ", "⁇"].map(shown), ["born", "⏎", "␣", "⁇"]);
  assert.deepEqual([begins("x", 0), begins("x", 1), begins(" x", 1)], [true, false, true]);
});

test("the address restores the state", () => {
  const change = { layer: 0, tap: "z", head: 1, position: null, by: /** @type {const} */ ("zero"), other: "" };
  const state = { run: "a/b", mode: /** @type {const} */ ("continue"), text: "x & y", risk: 0.25, layer: 2, head: 0, token: 0, incoming: true, step: 5, changes: [change] };
  const written = Object.fromEntries(Object.entries(serialise(state)).map(([name, value]) => [name, String(value)]));
  assert.deepEqual(parse(written), state);
});

test("an address with nonsense is read as far as possible", () => {
  const state = parse({ risk: "7", layer: "-1", head: "x", token: "1e9", changes: "[{\"layer\":-1},{\"layer\":0,\"tap\":\"constructor\",\"by\":\"zero\"},3]" });
  assert.deepEqual([state.risk, state.layer, state.head, state.token], [0.1, 1, 1, 0]);
  assert.deepEqual(state.changes, []);
  assert.deepEqual(parse({ changes: "{" }).changes, []);
});

test("changes in words", () => {
  const change = { layer: 1, tap: "z", head: 0, position: null, by: /** @type {const} */ ("zero"), other: "" };
  assert.equal(inWords(change, []), "Switch off layer 2, head 1");
  assert.equal(inWords({ ...change, tap: "mlp_out", position: 1, by: "mean" }, [" a", " b"]), "Replace layer 2, output of the MLP at token 2 “b” by its mean over this text");
});

test("a class of one's own is named without its file", () => {
  assert.equal(shortName("dot, /a folder/mine.py@07486ae3c002:RunningMean"), "dot, RunningMean");
  assert.equal(shortName("mine.py:Mean"), "Mean");
});

test("numbers", () => {
  assert.deepEqual([0.0001, 0.99999, 1, 0, null].map(chance), ["< 0.1 %", "99.9 %", "100.0 %", "0.0 %", "–"]);
  assert.deepEqual([0.05, -0.1, 0.00001].map(points), ["+5.0", "−10.0", "0.0"]);
  assert.equal(nearestRisk([0.1, 0.2, 0.3], 0.21), 1);
});
