import assert from "node:assert/strict";
import { test } from "node:test";
import { attend } from "../../../src/attnlab/serve/static/lib/attention.js";
import { nearest, solve } from "../../../src/attnlab/serve/static/lib/solve.js";
import { PRESETS } from "../../../src/attnlab/serve/static/views/design/state.js";

const common = { tolerance: 0.01, scale: "none" };
const presetOf = (name) => PRESETS.find((preset) => preset.name === name).configuration;
const missed = ({ keys, values, scale }, { query, target }) =>
  Math.max(...attend(keys, values, query, scale === "sqrt").output.map((x, c) => Math.abs(x - target[c])));

test("every value of the gallery whose key is a corner is selected, and the error is that of its query", () => {
  for (const name of ["square", "orthonormal", "worked", "twenty"]) {
    const { keys, values } = presetOf(name);
    keys.forEach((_, index) => {
      const wanted = { ...common, task: "select", keys, values, index };
      const { result } = solve(wanted);
      assert.equal(result.status, "solved", `${name} ${index}`);
      assert.ok(missed(wanted, result) <= 0.01);
    });
  }
});

test("a mean of values and a point are reached, also with scaled scores", () => {
  const { keys, values } = presetOf("square");
  for (const more of [{ task: "average", indices: [0, 1] }, { task: "average", indices: [0, 1], weights: [0.3, 0.7] }, { task: "reach", target: [0.2, -0.1] }]) {
    const wanted = { ...common, scale: "sqrt", keys, values, ...more };
    const { result, command } = solve(wanted);
    assert.equal(result.status, "solved", JSON.stringify(more));
    assert.ok(missed(wanted, result) <= 0.01);
    assert.match(command, more.weights ? /^attnlab design blend .*--weights '0.3,0.7' --tolerance 0.01 --scale sqrt$/ : /^attnlab design (average|reach) /);
  }
});

test("what is called impossible is missed by every query, by at least the bound", () => {
  const { keys, values } = presetOf("inside");
  for (const more of [{ task: "select", index: 3 }, { task: "reach", target: [2, 0.5] }]) {
    const { result } = solve({ ...common, keys, values, ...more });
    assert.equal(result.status, "impossible");
    assert.ok(result.lower_bound > 0.05);
    for (let i = 0; i < 4000; i++) {
      const query = [Math.cos(i), Math.sin(i)].map((x) => x * 1.003 ** i);
      assert.ok(missed({ keys, values }, { query, target: result.target }) >= result.lower_bound);
    }
  }
});

test("a mean that no query is known to give is undecided, and a command searches longer", () => {
  const keys = [[0, 0], [1, 0], [2, 0]], values = [[0, 0], [1, 1], [2, 0]]; // the middle key keeps a share
  const { result } = solve({ ...common, task: "average", keys, values, indices: [0, 2] });
  assert.equal(result.status, "undecided");
  assert.match(result.statement, /command below/);
});

test("the nearest point of a hull, with the weights of its corners", () => {
  const edge = nearest([[1, 1], [1, -1], [3, 0]]);
  assert.deepEqual(edge.point.map((x) => Number(x.toFixed(12))), [1, 0]);
  assert.deepEqual(edge.weights.map((x) => Number(x.toFixed(12))), [0.5, 0.5, 0]);
  assert.ok(Math.hypot(...nearest([[1, 0], [-1, 1], [-1, -1], [0, 2]]).point) < 1e-9);
});
