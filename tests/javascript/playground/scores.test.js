// What an output is to a person: scores of classes, or a table.

import assert from "node:assert/strict";
import test from "node:test";

import { bestClasses, elementRows, outputKind } from "../../../static/js/playground/scores.js";

const output = (data, shape, datatype = "FP32") => ({ name: "y", datatype, shape, data });

test("one row of shares that add up to 1 are the scores of classes", () => {
  assert.equal(outputKind(output([0.1, 0.7, 0.2], [1, 3])), "shares");
  assert.equal(outputKind(output([0.25, 0.75], [1, 2], "FP16")), "shares");
});

test("rounding of small floats is forgiven", () => {
  assert.equal(outputKind(output([0.999, 0.0100001, -1e-7], [3])), "shares");
});

test("a long row of any numbers is ranked, and a short one where its classes have names", () => {
  assert.equal(outputKind(output(Array(1000).fill(-3), [1, 1000])), "ranking");
  assert.equal(outputKind(output([2, -1, 4], [1, 3]), true), "ranking");
});

test("several rows show the best classes of each", () => {
  assert.equal(outputKind(output([0.5, 0.5, 0.1, 0.9], [2, 2])), "batch");
  assert.equal(outputKind(output([5, 5, 1, 9], [2, 2]), true), "batch");
});

test("anything else is a table", () => {
  const others = {
    "adds up to 2": output([1, 1], [2]),
    "is negative": output([-0.5, 1.5], [2]),
    "is of integers": output([0, 1], [2], "INT64"),
    "has rows of any numbers": output([5, 5, 1, 9], [2, 2]),
    "is a single number": output([1], [1]),
    "is of text": output(["0.5", "0.5"], [2], "BYTES"),
    "is no number": output([NaN, 1], [2]),
  };
  for (const [what, one] of Object.entries(others)) assert.equal(outputKind(one), "table", what);
});

test("what is no number comes last, and a row of a batch is ranked by itself", () => {
  assert.deepEqual(bestClasses([NaN, 1, 3, 2], 3).map(({ index }) => index), [2, 3, 1]);
  assert.deepEqual(bestClasses([NaN, NaN], 1).map(({ index }) => index), [0]);
  assert.deepEqual(bestClasses([9, 9, 1, 2, 3, 9], 2, 2, 3), [{ score: 3, index: 2 }, { score: 2, index: 1 }]);
});

test("the best classes come first, and keep their numbers", () => {
  const best = bestClasses([0.1, 0.6, 0.3], 2);
  assert.deepEqual(best, [{ score: 0.6, index: 1 }, { score: 0.3, index: 2 }]);
});

test("a table has a row for each row of the tensor", () => {
  const { rows, cut } = elementRows(output([1, 2, 3, 4, 5, 6], [2, 3], "INT32"));
  assert.deepEqual(rows, [["1", "2", "3"], ["4", "5", "6"]]);
  assert.equal(cut, false);
});

test("a list has a row for each element", () => {
  assert.deepEqual(elementRows(output(["a", true, 2], [3], "BYTES")).rows, [["a"], ["true"], ["2"]]);
});

test("numbers are written so that they can be compared", () => {
  const { rows } = elementRows(output([0.123456, 1e-7, 123456789.5, 12], [1, 4]));
  assert.deepEqual(rows, [["0.123", "1.00e-7", "1.23e+8", "12"]]);
});

test("a long table is cut, and says so", () => {
  const { rows, total, cut } = elementRows(output(Array(200).fill(1), [100, 2]));
  assert.deepEqual([rows.length, total, cut], [50, 200, true]);
});

test("a wide table shows its first columns", () => {
  const { rows, cut } = elementRows(output(Array(100).fill(1), [1, 100]));
  assert.deepEqual([rows[0].length, cut], [64, true]);
});

test("a tensor without elements is an empty table", () => {
  assert.deepEqual(elementRows(output([], [1, 0])), { rows: [], total: 0, cut: false });
});
