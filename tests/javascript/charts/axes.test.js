// Axes: round bounds that do not jump, and ticks at round places.

import assert from "node:assert/strict";
import test from "node:test";

import { logTicks, momentText, roundBound, steadyBound, timeTicks, valueTicks } from "../../../static/js/charts/axes.js";

process.env.TZ = "Europe/Berlin";

test("a bound is the next of 1, 2 and 5 times a power of ten", () => {
  const bounds = { 0.03: 0.05, 0.9: 1, 1: 1, 1.2: 2, 3: 5, 7: 10, 99: 100, 101: 200, 6000: 10000 };
  for (const [value, bound] of Object.entries(bounds)) {
    assert.ok(Math.abs(roundBound(Number(value)) - bound) < bound * 1e-9, `${value} -> ${roundBound(Number(value))}`);
  }
});

test("a bound of bytes is round in the unit that they are written in", () => {
  assert.equal(roundBound(3 * 2 ** 20, true), 5 * 2 ** 20);
  assert.equal(roundBound(900, true), 1000);
  assert.equal(roundBound(1.5 * 2 ** 30, true), 2 * 2 ** 30);
});

test("an axis of nothing goes to one", () => {
  for (const value of [0, -3, NaN]) assert.equal(roundBound(value), 1);
});

test("an axis grows at once, and shrinks only when it is far too large", () => {
  assert.equal(steadyBound(3, undefined), 5);
  assert.equal(steadyBound(30, 5), 50);
  assert.equal(steadyBound(15, 50), 50);
  assert.equal(steadyBound(3, 50), 5);
});

test("an axis leaves room above its highest value", () => {
  assert.equal(steadyBound(5, undefined), 10);
});

test("value ticks begin at a bare 0 and end at the bound", () => {
  const write = (value) => `${value} ms`;
  assert.deepEqual(valueTicks(5, write), { values: [0, 1, 2, 3, 4, 5], texts: ["0", "1 ms", "2 ms", "3 ms", "4 ms", "5 ms"] });
  assert.deepEqual(valueTicks(20, write).values, [0, 5, 10, 15, 20]);
  assert.deepEqual([1, 2, 10].map((bound) => valueTicks(bound, write, true).values), [[0, 1], [0, 2], [0, 2, 4, 6, 8, 10]]);
});

test("a logarithmic axis has 2 and 5 between its powers where there is room", () => {
  const near = logTicks(1, 50, String).values;
  assert.deepEqual(near.map((value) => Number(value.toPrecision(3))), [1, 2, 5, 10, 20, 50]);
  const far = logTicks(0.1, 10000, String).values;
  assert.deepEqual(far.map((value) => Number(value.toPrecision(3))), [0.1, 1, 10, 100, 1000, 10000]);
});

test("logarithmic ticks lie within the axis", () => {
  for (const value of logTicks(0.3, 42, String).values) assert.ok(value >= 0.3 * 0.99 && value <= 42 * 1.01);
});

test("time ticks stand at round local times", () => {
  const start = Date.UTC(2026, 4, 4, 10, 3) / 1000; // 12:03 in Berlin
  const { values, texts } = timeTicks(start, start + 900, 4);
  assert.deepEqual(texts, ["12:05", "12:10", "12:15"]);
  assert.deepEqual(values.map((at) => at % 300), [0, 0, 0]);
});

test("time ticks are never more than were asked for, and one", () => {
  for (const span of [10, 900, 3600, 86400, 30 * 86400]) {
    const { length } = timeTicks(1.7e9, 1.7e9 + span, 6).values;
    assert.ok(length >= 2 && length <= 7, `${span} s: ${length} ticks`);
  }
});

test("midnight is written as its day", () => {
  const noon = Date.UTC(2026, 4, 4, 10) / 1000;
  assert.ok(timeTicks(noon, noon + 86400, 6).texts.includes("5 May"));
});

test("steps of less than a minute are written with seconds", () => {
  assert.deepEqual(timeTicks(Date.UTC(2026, 4, 4, 10) / 1000, Date.UTC(2026, 4, 4, 10, 0, 30) / 1000, 3).texts[1], "12:00:10");
});

test("the moment under the crosshair is written to the second", () => {
  assert.match(momentText(Date.UTC(2026, 4, 4, 10, 3, 7) / 1000), /^4 May.* 12:03:07$/);
});
