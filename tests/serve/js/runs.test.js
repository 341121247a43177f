import assert from "node:assert/strict";
import { test } from "node:test";
import { address, amount, arrange, choose, conditions, duration, encoded, exported, figure, stateWords } from "../../../src/attnlab/serve/static/views/run/entries.js";

const entry = (given) => ({
  name: "a", kind: "run", what: "pretrain", state: "complete", when: "2026-01-01T00:00:00+00:00", preset: null, mechanism: null, task: null,
  seed: null, progress: null, tokens: null, seconds: null, loss: null, accuracy: null, note: "", runs: [], ...given,
});

test("conditions may have spaces around their sign", () => {
  assert.deepEqual(conditions(" mechanism=dot  train.lr >= 0.001 state!= complete"), ["mechanism=dot", "train.lr>=0.001", "state!=complete"]);
  assert.deepEqual(conditions("  "), []);
});

test("addresses hold any name", () => {
  assert.equal(address("study/<img src=x>"), "/runs/study/%3Cimg%20src%3Dx%3E");
  assert.equal(address("a?b#c/d"), "/runs/a%3Fb%23c/d");
  assert.equal(new URL(`/api/runs/${encoded("../../etc")}/report`, "http://host").pathname, "/api/runs/..%2F..%2Fetc/report");
});

test("a study is found by its runs", () => {
  const study = entry({ name: "s", kind: "study", runs: [entry({ name: "s/additive", mechanism: "additive" })] });
  const all = [study, entry({ name: "other", mechanism: "dot", state: "stopped" })];
  assert.deepEqual(choose(all, { search: "ADDITIVE" }).map((one) => one.name), ["s"]);
  assert.deepEqual(choose(all, { kind: "run" }).map((one) => one.name), ["other"]);
  assert.deepEqual(choose(all, { state: "stopped", search: "dot other" }).map((one) => one.name), ["other"]);
  assert.equal(choose(all, {}).length, 2);
});

test("entries without a value come last in either direction", () => {
  const all = [entry({ name: "none" }), entry({ name: "ten", tokens: 10 }), entry({ name: "nine", tokens: 9 })];
  assert.deepEqual(arrange(all, "tokens", false).map((one) => one.name), ["nine", "ten", "none"]);
  assert.deepEqual(arrange(all, "tokens", true).map((one) => one.name), ["ten", "nine", "none"]);
  assert.deepEqual(arrange([entry({ name: "run-10" }), entry({ name: "run-9" })], "name", false).map((one) => one.name), ["run-9", "run-10"]);
});

test("the better result is larger: accuracy, or a smaller loss", () => {
  const all = [entry({ name: "bad", loss: 3 }), entry({ name: "good", loss: 1 })];
  assert.equal(arrange(all, "result", true)[0].name, "good");
});

test("figures in words", () => {
  assert.equal(figure(entry({ accuracy: 0.1333, loss: 2 })), "13.3 %");
  assert.equal(figure(entry({ loss: 2 })), "loss 2.000");
  assert.equal(figure(entry({})), "");
  assert.equal(stateWords({ state: "active", progress: 0.42 }), "training 42 %");
  assert.equal(stateWords({ state: "stopped", progress: null }), "stopped");
  assert.equal(stateWords({ kind: "foreign", state: "", progress: null }), "not an attnlab folder");
  assert.deepEqual([duration(2.44), duration(59), duration(600), duration(7200), duration(null)], ["2.4 s", "59 s", "10 min", "2.0 h", ""]);
  assert.deepEqual([amount(12), amount(48877), amount(2e6), amount(null)], ["12", "48.9 k", "2 M", ""]);
});

test("the table is exported with the runs of studies and exact numbers", () => {
  const rows = exported([entry({ name: "s", kind: "study", runs: [entry({ name: "s/a", accuracy: 0.12345, seed: 0 })] })]);
  assert.deepEqual(rows.map((row) => row[0]), ["name", "s", "s/a"]);
  assert.equal(rows[2][rows[0].indexOf("accuracy")], "0.12345");
  assert.equal(rows[2][rows[0].indexOf("seed")], "0");
  assert.equal(rows[1][rows[0].indexOf("loss")], "");
});
