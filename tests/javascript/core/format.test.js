// Numbers and times as the pages write them; tests/dashboard/web/test_units.py holds the server to the same examples.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import * as format from "../../../static/js/core/format.js";

const { numbers, ages } = JSON.parse(readFileSync(new URL("units.json", import.meta.url), "utf8"));
const NOW = Date.UTC(2026, 4, 4, 12);

for (const [name, value, text] of numbers) {
  test(`${name} writes ${value} as ${text}`, () => assert.equal(format[name](value), text));
}

for (const [seconds, text] of ages) {
  test(`a moment ${seconds} s before now is ${text}`, () => assert.equal(format.ago(NOW - seconds * 1000, NOW), text));
}

test("a moment of more than two months ago is its date", () => {
  assert.equal(format.ago(Date.UTC(2026, 0, 24, 12), NOW), "24 Jan 2026");
});

test("what was not measured is a dash", () => {
  for (const write of [format.count, format.rate, format.latency, format.share, format.size, format.duration]) {
    for (const value of [null, undefined, NaN]) assert.equal(write(value), "–");
  }
});
