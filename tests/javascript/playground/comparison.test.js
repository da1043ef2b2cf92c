// Two answers to the same input, output by output.

import assert from "node:assert/strict";
import test from "node:test";

import { differences, versionName } from "../../../static/js/playground/comparison.js";

const output = (data, more = {}) => ({ name: "y", datatype: "FP32", shape: [1, data.length], data, ...more });

test("the largest difference is told, and whether the best class is the same", () => {
  const [found] = differences([output([0.1, 0.9, 0])], [output([0.2, 0.7, 0])]);
  assert.equal(found.differ, 2);
  assert.ok(Math.abs(found.largest - 0.2) < 1e-9);
  assert.ok(Math.abs(found.relative - 0.5) < 1e-9);
  assert.ok(Math.abs(found.mean - 0.1) < 1e-9);
  assert.equal(found.sameBest, true);
  assert.equal(differences([output([1, 2])], [output([2, 1])])[0].sameBest, false);
});

test("the same answers do not differ, NaN included", () => {
  const [found] = differences([output([NaN, 1])], [output([NaN, 1])]);
  assert.deepEqual([found.differ, found.largest, found.mean], [0, 0, 0]);
});

test("infinity is as far from a number as can be", () => {
  assert.equal(differences([output([Infinity, 1])], [output([1, 1])])[0].largest, Infinity);
});

test("texts differ or do not, without being near", () => {
  const texts = (...data) => output(data, { datatype: "BYTES" });
  const [found] = differences([texts("a", "b", new Uint8Array([1]))], [texts("a", "c", new Uint8Array([1]))]);
  assert.deepEqual([found.differ, found.largest, found.sameBest], [1, null, null]);
});

test("outputs of another form, and those that one alone has, are named", () => {
  const found = differences([output([1]), output([1], { name: "a" })], [output([1], { datatype: "FP64" }), output([1], { name: "b" })]);
  assert.deepEqual(found.map(({ name, other }) => [name, other]), [
    ["y", "FP32 against FP64"], ["a", "only one answer has it"], ["b", "only one answer has it"],
  ]);
  assert.equal(differences([output([1])], [output([1, 2])])[0].other, "[1, 1] against [1, 2]");
});

test("a version is named by what was asked and by what answered", () => {
  const asked = (version, number) => ({ version, answer: number ? { model_version: number, outputs: [] } : null });
  assert.equal(versionName(asked("", "3")), "Version 3");
  assert.equal(versionName(asked("3", "3")), "Version 3");
  assert.equal(versionName(asked("champion", "3")), "champion (version 3)");
  assert.equal(versionName(asked("", null)), "Server's choice");
});
