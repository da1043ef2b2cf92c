// Filters of lists.

import assert from "node:assert/strict";
import test from "node:test";

import { holdsWords } from "../../../static/js/shell/filter.js";

test("every word of a filter must be there, in any order and in any case", () => {
  assert.ok(holdsWords("digits ready ONNX", "onnx dig"));
  assert.ok(!holdsWords("digits ready ONNX", "digits failed"));
});

test("an empty filter fits everything", () => {
  for (const filter of ["", "  "]) assert.ok(holdsWords("digits", filter));
});
