// The mathematics of the design view.
import assert from "node:assert/strict";
import { test } from "node:test";
import { attend, hull, niceAbove, p95, restBound, snap, softmax } from "../../../src/attnlab/serve/static/lib/attention.js";
import {
  PRESETS, configurationOf, presetOf, queryOf, readConfiguration, readQuestion, readRows, resized, splitQuery, writeConfiguration, writeQuestion,
} from "../../../src/attnlab/serve/static/views/design/state.js";

/** @param {number} x @param {number} y */
const near = (x, y, tolerance = 1e-12) => assert.ok(Math.abs(x - y) <= tolerance, `${x} is not ${y}`);

test("weights are positive, sum to 1, and survive large scores", () => {
  for (const scores of [[0, 0, 0], [1, 2, 3], [1e5, 1e5 - 1, -1e5], [800, -800]]) {
    const weights = softmax(scores);
    near(weights.reduce((a, b) => a + b), 1);
    assert.ok(weights.every((weight) => weight >= 0 && weight <= 1));
  }
  near(softmax([0, Math.log(3)])[1], 0.75);
});

test("the worked exercise: the mean of two keys misses by 0.186, ten times it by 0.003", () => {
  const { keys, values } = configurationOf(PRESETS.filter((preset) => preset.name === "worked")[0]);
  const query = keys[0].map((x, c) => (x + keys[1][c]) / 2);
  const wanted = values[0].map((x, c) => (x + values[1][c]) / 2);
  /** @param {number} factor */
  const miss = (factor) => Math.max(...attend(keys, values, query.map((x) => factor * x)).output.map((x, c) => Math.abs(x - wanted[c])));
  near(miss(1), 0.186, 5e-4);
  near(miss(10), 0.003, 5e-4);
});

test("the rest is within the bound of the margin, which is exact for equal others", () => {
  const values = [[1], [2], [3]];
  const equal = attend([[1, 0], [0, 0], [0, 0]], values, [4, 1]);
  near(equal.margin, 4);
  near(equal.rest, equal.bound);
  const other = attend([[1, 0], [0, 0], [-1, 0]], values, [4, 1]);
  assert.ok(other.rest < other.bound);
  assert.deepEqual([other.leader, other.next], [0, 1]);
  assert.ok(attend([[1], [0]], [[1], [0]], [100]).rest > 0);
  assert.equal(restBound(1, Infinity), 0);
});

test("one key has all the weight", () => {
  const one = attend([[1, 2]], [[3]], [5, 6]);
  assert.deepEqual([one.weights, one.output, one.next, one.rest, one.bound], [[1], [3], -1, 0, 0]);
});

test("scores are divided by the square root of the width on request", () => {
  near(attend([[1, 1, 1, 1]], [[0]], [2, 2, 2, 2], true).scores[0], 4);
});

test("hulls", () => {
  const square = [[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.5], [0.5, 0]];
  assert.deepEqual([...hull(square)].sort(), [0, 1, 2, 3]);
  assert.deepEqual(hull([[1, 1]]), [0]);
  assert.equal(hull([[1, 1], [1, 1]]).length, 1);
  assert.deepEqual([...hull([[0, 0], [1, 1], [2, 2]])].sort(), [0, 2]);
});

test("no point is outside of the hull", () => {
  const points = Array.from({ length: 60 }, (_, i) => [Math.sin(i * i), Math.cos(3 * i * i + 1)]);
  const corners = hull(points).map((i) => points[i]);
  corners.forEach((a, place) => {
    const b = corners[(place + 1) % corners.length];
    for (const p of points) assert.ok((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) >= -1e-12);
  });
});

test("numbers for axes and steps", () => {
  assert.deepEqual([0.3, 1, 1.1, 7, 50, 0.0012].map(niceAbove), [0.5, 1, 2, 10, 50, 0.002]);
  assert.equal(snap(0.123456, 0.01), 0.12);
  assert.equal(snap(-0.001, 0.01), 0);
  assert.equal(snap(123.4, 10), 120);
  assert.equal(p95(Array.from({ length: 100 }, (_, i) => i + 1)), 95);
  assert.equal(p95([]), 0);
});

test("a link restores every preset", () => {
  for (const preset of PRESETS) {
    const configuration = { ...configurationOf(preset), scaled: true };
    assert.deepEqual(readConfiguration(writeConfiguration(configuration)), configuration);
  }
});

test("a link with nonsense is no configuration, and what does not fit is left out", () => {
  assert.equal(readConfiguration({}), null);
  assert.equal(readConfiguration({ k: "1,2;3", v: "1;2" }), null);
  assert.equal(readConfiguration({ k: "1;2", v: "1" }), null);
  assert.equal(readConfiguration({ k: "1;x", v: "1;2" }), null);
  assert.equal(readConfiguration({ k: "1;Infinity", v: "1;2" }), null);
  assert.equal(readRows("1,,2"), null);
  const found = readConfiguration({ k: "1,0;0,1", v: "1;2", q: "1,2,3", c: "-4", t: "1,2" });
  assert.deepEqual([found?.direction, found?.scale, found?.target], [[0, 0], 1, [1.5]]);
});

test("a link restores the question", () => {
  const question = { task: /** @type {const} */ ("average"), index: 0, indices: [1, 3], weights: "0.2,0.8", tolerance: 0.05 };
  assert.deepEqual(readQuestion(writeQuestion(question), 4), question);
  assert.deepEqual(readQuestion({ do: "dance", j: "7", i: "9,x", tol: "-1" }, 2), {
    task: "select", index: 0, indices: [0, 1], weights: "", tolerance: 0.01,
  });
});

test("a long query is split into a direction that fits and a factor", () => {
  const { direction, scale } = splitQuery([30, -40], 1);
  assert.equal(scale, 100);
  assert.deepEqual(direction, [0.3, -0.4]);
  assert.deepEqual(splitQuery([0.3, 0.4], 1), { direction: [0.3, 0.4], scale: 1 });
  assert.deepEqual(splitQuery([0, 0], 1), { direction: [0, 0], scale: 1 });
  const whole = { ...configurationOf(PRESETS[0]), direction, scale };
  assert.deepEqual(queryOf(whole), [30, -40]);
});

test("dimensions are added as zeros and taken away", () => {
  const more = resized(configurationOf(PRESETS[0]), 3, 1);
  assert.deepEqual(more.keys[0], [0.9, 0.3, 0]);
  assert.deepEqual([more.values[0].length, more.target.length, more.direction.length], [1, 1, 3]);
});

test("an unchanged preset is recognised", () => {
  for (const preset of PRESETS) assert.equal(presetOf(configurationOf(preset)), preset);
  assert.equal(presetOf({ ...configurationOf(PRESETS[0]), scale: 7 }), undefined);
});
