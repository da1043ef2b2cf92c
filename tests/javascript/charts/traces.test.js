// What plotly.js is given to draw.

import assert from "node:assert/strict";
import test from "node:test";

import { kindByVersion } from "../../../static/js/charts/kinds.js";
import { drawingOf, unbroken } from "../../../static/js/charts/traces.js";

const paint = () => "rgb(10, 20, 30)";
const VIEW = { start: 0, end: 10, times: [1, 2, 3, 4], series: {}, batches: {}, markers: [], outages: [] };
const draw = (name, view) => drawingOf(name, { ...VIEW, ...view }, paint);

test("an area is drawn in pieces between its gaps", () => {
  assert.deepEqual(unbroken([1, 2, 3, 4], [5, null, 6, 7]), [{ x: [1], y: [5] }, { x: [3, 4], y: [6, 7] }]);
  assert.equal(draw("throughput", { series: { rps: [5, null, 6, 7] } }).traces.length, 2);
});

test("a line keeps its gaps", () => {
  const { traces } = draw("latency", { series: { p50: [1, null, 2, 3], p95: [2, null, 4, 5], p99: [3, null, 5, 60] } });
  assert.deepEqual(traces.map(({ name, y }) => [name, y.length]), [["p50", 4], ["p95", 4], ["p99", 4]]);
  assert.ok(traces.every(({ connectgaps }) => connectgaps === false));
});

test("the axis holds the highest and the lowest value", () => {
  const { top, low } = draw("latency", { series: { p50: [1, 2], p95: [2, 4], p99: [3, 60] } });
  assert.deepEqual([top, low], [60, 1]);
});

test("what is stacked is as high as its sum", () => {
  assert.equal(draw("phases", { series: { queue_ms: [1, 2], input_ms: [1, 1], infer_ms: [2, 3], output_ms: [0, 1] } }).top, 7);
  assert.equal(draw("errors", { series: { failed_model: [1, 0], cancelled: [2, 0] } }).top, 3);
});

test("a range in which nothing happened draws nothing, whatever was not measured", () => {
  for (const series of [{}, { rps: [] }, { rps: [0, 0, 0] }, { rps: [null, null] }]) {
    assert.deepEqual(draw("throughput", { series }), { traces: [], top: 1, low: 0 });
  }
});

test("a share keeps its axis", () => {
  assert.equal(draw("cache", { series: { cache_share: [0.1, 0.2] } }).top, 1);
});

test("batches are in the order of their sizes", () => {
  const { traces, top } = draw("batches", { batches: { 16: 3, 2: 7, 8: 1 } });
  assert.deepEqual(traces.map(({ x, y }) => [x, y]), [[["2", "8", "16"], [7, 1, 3]]]);
  assert.equal(top, 7);
  assert.deepEqual(draw("batches", {}).traces, []);
});

test("a long range shows latency as a heat map with its p99", () => {
  const heatmap = { times: [0, 10], bounds_ms: [0, 1, 4], counts: [[0, 1], [99, 0]] };
  const { traces, top, low } = draw("latency", { heatmap, series: { p99: [1, 2, 3, 4] } });
  assert.deepEqual(traces.map(({ type }) => type), ["heatmap", "scatter"]);
  assert.deepEqual(traces[0].z, [[0, Math.log1p(1)], [Math.log1p(99), 0]]);
  assert.deepEqual([traces[0].y, top, low], [[0.01, 1, 4], 4, 0.01]);
});

test("a heat map without a request is drawn as lines", () => {
  const heatmap = { times: [0], bounds_ms: [], counts: [] };
  assert.equal(draw("latency", { heatmap, series: { p50: [1], p95: [1], p99: [1] } }).traces[0].type, "scatter");
});

test("few points of a line are marked, many are not", () => {
  const mode = (length) => draw("latency", { series: { p50: Array(length).fill(1) } }).traces[0].mode;
  assert.deepEqual([mode(5), mode(100)], ["lines+markers", "lines"]);
});

test("what lies behind a line is of the same colour", () => {
  assert.equal(draw("memory", { series: { rss: [1, 2] } }).traces[0].fillcolor, "rgba(10,20,30,0.14)");
});

test("two versions are two lines of latency, rate and errors", () => {
  const series = { "p50@1": [1, 1], "p99@1": [3, 3], "p50@2": [2, 2], "p99@2": [4, 4], "rps@1": [5, 6], "rps@2": [7, 8] };
  const of = (name) => drawingOf(name, { ...VIEW, times: [1, 2], series }, paint, kindByVersion(name, ["1", "2"])).traces;
  assert.deepEqual(of("latency").map(({ name, line }) => [name, line.dash]), [
    ["version 1 p50", "dot"], ["version 2 p50", "dot"], ["version 1 p99", undefined], ["version 2 p99", undefined],
  ]);
  assert.deepEqual(of("throughput").map(({ name, y }) => [name, y]), [["version 1", [5, 6]], ["version 2", [7, 8]]]);
  assert.deepEqual(of("errors"), [], "none failed");
  assert.equal(kindByVersion("throughput", ["1 digits_0"]).series[0][2], "version 1 digits_0", "an instance says its version");
  const refused = drawingOf("errors", { ...VIEW, times: [1], series: { "errors@0": [3] } }, paint, kindByVersion("errors", ["0", "1"]));
  assert.deepEqual(refused.traces.map(({ name }) => name), ["version 1", "none served"]);
  assert.equal(kindByVersion("latency", ["0", "1"]).series.length, 2, "what no version answered has no latency");
  assert.equal(kindByVersion("pending", ["1", "2"]), kindByVersion("pending", []), "what has no versions stays as it is");
});
