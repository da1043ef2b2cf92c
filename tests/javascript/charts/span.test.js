// Spans of time: buttons, keys and fields.

import assert from "node:assert/strict";
import test from "node:test";

import { signOf } from "../../../static/js/charts/marks.js";
import { fieldText, moved, spanOfFields } from "../../../static/js/charts/span.js";
import { drawingOf } from "../../../static/js/charts/traces.js";

test("a span moves by half of itself, and never ends in the future", () => {
  assert.deepEqual(moved([100, 200], "earlier", 1000), [50, 150]);
  assert.deepEqual(moved([100, 200], "later", 1000), [150, 250]);
  assert.deepEqual(moved([100, 200], "later", 220), [120, 220]);
});

test("zooming keeps the middle, or the crosshair, at its place", () => {
  assert.deepEqual(moved([100, 200], "in", 1000), [125, 175]);
  assert.deepEqual(moved([100, 200], "in", 1000, 180), [140, 190]);
  assert.deepEqual(moved([100, 200], "out", 1000), [50, 250]);
  assert.deepEqual(moved([100, 200], "out", 200), [0, 200]);
});

test("a span is never shorter than five seconds nor longer than thirty days", () => {
  assert.deepEqual(moved([100, 106], "in", 1000), [100.5, 105.5]);
  const [start, end] = moved([0, 20 * 86400], "out", 1e9);
  assert.equal(end - start, 30 * 86400);
});

test("two fields give a span, or a sentence", () => {
  const at = Date.parse("2026-03-01T10:00:00") / 1000;
  assert.deepEqual(spanOfFields("2026-03-01T10:00:00", "2026-03-01T10:01:00"), [at, at + 60]);
  assert.equal(spanOfFields("2026-03-01T10:00:00", "2026-03-01T10:00:00"), "The end must be after the start.");
  assert.equal(spanOfFields("", "2026-03-01T10:00:00"), "Choose both moments.");
  assert.equal(spanOfFields("2026-01-01T10:00:00", "2026-03-01T10:00:00"), "Choose at most 30 days.");
  assert.equal(fieldText(at), "2026-03-01T10:00:00");
});

test("an earlier span is a dotted line, and the axis holds it", () => {
  const before = { label: "a day before", times: [1, 2], series: { rps: [50, 60] } };
  const view = { start: 0, end: 10, times: [1, 2], series: { rps: [5, 6] }, batches: {}, markers: [], outages: [], before };
  const { traces, top } = drawingOf("throughput", view, () => "rgb(1, 2, 3)");
  assert.deepEqual(traces.map(({ name, line }) => [name, line.dash]), [["requests", undefined], ["requests a day before", "dot"]]);
  assert.equal(top, 60);
  assert.equal(drawingOf("cpu", view, () => "rgb(1, 2, 3)").traces.length, 0, "a chart that is not compared stays as it is");
});

test("a kind of mark has its sign, and a failure has another", () => {
  assert.equal(signOf({ kind: "rollout", bad: false }), "◆");
  assert.equal(signOf({ kind: "rollout", bad: true }), "✕");
  assert.equal(signOf({ kind: "model.load", bad: false }), "▼");
});
