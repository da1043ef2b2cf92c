// The lines of a log that a person wants to see.

import assert from "node:assert/strict";
import test from "node:test";

import { chosenLines, levelsOf } from "../../../static/js/live/log.js";

const LINES = [
  "2026-11-30 17:05:00,123 INFO version 3: loaded",
  "2026-11-30T17:05:00Z ERROR version 3: it failed",
  "\tTraceback: ValueError",
  "2026-11-30 17:05:01,000 WARNING late again",
];

test("a line without a level has that of the line before", () => {
  assert.deepEqual(levelsOf(LINES), ["INFO", "ERROR", "ERROR", "WARNING"]);
  assert.deepEqual(levelsOf(["a line of a library"]), [""]);
});

test("lines are chosen by level and by words", () => {
  const texts = (least, words) => chosenLines(LINES, least, words).map(({ text }) => LINES.indexOf(text));
  assert.deepEqual(texts("", ""), [0, 1, 2, 3]);
  assert.deepEqual(texts("WARNING", ""), [1, 2, 3]);
  assert.deepEqual(texts("ERROR", ""), [1, 2]);
  assert.deepEqual(texts("", "valueERROR trace"), [2]);
  assert.deepEqual(texts("ERROR", "late"), []);
});
