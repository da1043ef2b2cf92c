// The configuration's editor: which fields differ, how a difference is shown, and how a line is indented.

import assert from "node:assert/strict";
import test from "node:test";

import { diffLines } from "../../../static/js/configuration/diff.js";
import { indentationAfter, placeOf, verdict } from "../../../static/js/configuration/editor.js";
import { differing, same, shown, shownReshape } from "../../../static/js/configuration/fields.js";

test("a list means the same as what a person types for it", () => {
  assert.ok(same([8, 16], "8, 16"));
  assert.ok(same([8, 16], "8,16 "));
  assert.ok(!same([8, 16], "8, 17"));
  assert.ok(!same([8, 16], "816"));
});

test("nothing can be written in many ways", () => {
  assert.ok(same(null, ""));
  assert.ok(same(undefined, " "));
  assert.ok(same([], ""));
  assert.ok(!same(0, ""));
});

test("numbers and yes or no mean the same as their texts", () => {
  assert.ok(same(8, "8"));
  assert.ok(same(true, "true"));
  assert.ok(!same(true, false));
});

test("rows are compared one by one, whatever the order of their names, and without what is empty", () => {
  const told = [{ name: "x", dims: [1, 2], reshape: null, optional: false }];
  assert.ok(same(told, [{ dims: "1, 2", name: "x", reshape: "" }]));
  assert.ok(!same(told, [{ dims: "1, 3", name: "x" }]));
  assert.ok(!same(told, []));
});

test("only what differs is laid over the text", () => {
  const told = { max_batch_size: 8, preferred_batch_size: [4, 8], batching: true };
  const typed = { max_batch_size: "16", preferred_batch_size: "4, 8", batching: true };
  assert.deepEqual(differing(typed, told), { max_batch_size: "16" });
});

test("a control shows a list with commas, and nothing as nothing", () => {
  assert.deepEqual([[1, 2], null, undefined, 0, "x"].map(shown), ["1, 2", "", "", "0", "x"]);
});

test("a difference's lines are marked, and its head is left out", () => {
  const diff = "--- before\n+++ after\n@@ -1,2 +1,2 @@\n-a: 1\n+a: 2\n b: 3";
  assert.deepEqual(diffLines(diff).map(({ kind }) => kind), ["at", "del", "add", null]);
  assert.equal(diffLines(diff)[1].text, "-a: 1");
});

test("a removed line that begins with dashes stays in the difference", () => {
  assert.deepEqual(diffLines("--- a\n+++ b\n@@\n--- x").map(({ text }) => text), ["@@", "--- x"]);
});

test("a new line is indented as the one before, and further after an open bracket", () => {
  assert.equal(indentationAfter("  name: 1"), "  ");
  assert.equal(indentationAfter("input ["), "  ");
  assert.equal(indentationAfter("    { "), "      ");
  assert.equal(indentationAfter("name: 1"), "");
});

test("an empty reshape is something else than none, and is shown as what it is", () => {
  const row = (reshape) => [{ name: "x", dims: [1], reshape }];
  assert.ok(!same(row([]), row(null)));
  assert.ok(!same(row("[ ]"), row("")));
  assert.ok(same(row([]), row("[]")));
  assert.ok(same(row([2, 2]), row("[2,2]")));
  assert.deepEqual([[], null, undefined, [2, 2], "[]"].map(shownReshape), ["[ ]", "", "", "2, 2", "[ ]"]);
});

test("a problem is shown at the control that it is about", () => {
  assert.deepEqual(placeOf("inputs[1].dims"), { name: "inputs", row: 1, key: "dims" });
  assert.deepEqual(placeOf("inputs[1].dims[0]"), { name: "inputs", row: 1, key: "dims" });
  assert.deepEqual(placeOf("max_batch_size"), { name: "max_batch_size", row: -1, key: "" });
  assert.deepEqual(placeOf("inputs"), { name: "inputs", row: -1, key: "" });
});

test("a text is called valid only where nothing speaks against it", () => {
  const problem = (severity) => ({ severity, message: "", line: 0, field: "" });
  assert.equal(verdict([]), "valid");
  assert.equal(verdict([problem("warning")]), "1 warning");
  assert.equal(verdict([problem("warning"), problem("error"), problem("error")]), "2 errors");
});
