// The points of charts: history and the live points after it.

import assert from "node:assert/strict";
import test from "node:test";

import { KINDS, shownSeries } from "../../../static/js/charts/kinds.js";
import { SeriesStore, nearest, newestKnown, rowOf } from "../../../static/js/charts/series.js";

const HISTORY = {
  step: 10,
  times: [100, 110, 120],
  series: { rps: [1, 2, null], batch: [{ 1: 3 }, { 1: 1, 8: 2 }, null] },
  process: { rss: [7, 8, null] },
};
const POINT = { at: 130, process: { rss: 9, cpu: 0.5, threads: 4, gpus: [] }, models: {}, memory: {} };
const FIGURES = { rps: 4, p50: 1.5, pending: 0, errors: 0, batch: { 8: 1 } };

test("a live point stands behind the history, at the same place in every series", () => {
  const store = SeriesStore.of(HISTORY);
  store.append(rowOf(POINT, FIGURES));
  assert.deepEqual(store.times, [100, 110, 120, 130]);
  assert.deepEqual(store.series.rps, [1, 2, null, 4]);
  assert.deepEqual(store.series.rss, [7, 8, null, 9]);
  assert.equal(store.newest, 130);
});

test("the dashboard's own lists stay as they came", () => {
  const store = SeriesStore.of(HISTORY);
  store.dropBefore(115);
  assert.deepEqual(HISTORY.times, [100, 110, 120]);
  assert.equal(HISTORY.series.batch.length, 3);
});

test("a second in which nothing happened is 0 for what is counted, a gap for what is measured", () => {
  const { values } = rowOf(POINT, undefined);
  assert.equal(values.rps, 0);
  assert.equal(values.pending, 0);
  assert.equal(values.p50, null);
  assert.equal(values.queue_ms, null);
});

test("each GPU has series of its own, and its memory is a share of all of it", () => {
  const gpu = { uuid: "GPU-1", utilization: 0.5, memory_used: 2, memory_total: 8 };
  const { values } = rowOf({ ...POINT, process: { ...POINT.process, gpus: [gpu, { ...gpu, utilization: 1 }] } }, undefined);
  assert.deepEqual([values["gpu@0"], values["gpu_memory@0"], values["gpu@1"]], [0.5, 0.25, 1]);
  assert.deepEqual(shownSeries(KINDS.gpu, { "gpu@0": [0.5], "gpu_memory@0": [null], "gpu@1": [0] }).map(([name]) => name), ["gpu@0", "gpu@1"]);
  const unknown = { ...gpu, utilization: null, memory_used: null, memory_total: null };
  const silent = rowOf({ ...POINT, process: { ...POINT.process, gpus: [unknown] } }, undefined).values;
  assert.deepEqual([silent["gpu@0"], silent["gpu_memory@0"]], [null, null]);
});

test("steps that still go on are dropped, those that are over stay", () => {
  const store = SeriesStore.of(HISTORY);
  store.dropUnfinished(125);
  assert.deepEqual(store.times, [100, 110]);
  assert.deepEqual(store.series.rps, [1, 2]);
  assert.deepEqual(store.batches, [{ 1: 3 }, { 1: 1, 8: 2 }]);
});

test("what has left the range is forgotten", () => {
  const store = SeriesStore.of(HISTORY);
  store.dropBefore(110);
  assert.deepEqual(store.times, [110, 120]);
  assert.deepEqual(store.series.rss, [8, null]);
  store.dropBefore(50);
  assert.deepEqual(store.times, [110, 120]);
});

test("live points that came while history was fetched go behind it", () => {
  const old = SeriesStore.empty();
  for (const at of [118, 120, 121, 122]) old.append(rowOf({ ...POINT, at }, { ...FIGURES, rps: at }));
  const store = SeriesStore.of(HISTORY);
  old.after(120).forEach((row) => store.append(row));
  assert.deepEqual(store.times, [100, 110, 120, 121, 122]);
  assert.deepEqual(store.series.rps, [1, 2, null, 121, 122]);
  assert.deepEqual(store.batches.at(-1), { 8: 1 });
  assert.deepEqual(old.after(500), []);
});

test("batches are counted in what is shown, a step that reaches into it too", () => {
  const store = SeriesStore.of(HISTORY);
  assert.deepEqual(store.batchesBetween(100, 130), { 1: 4, 8: 2 });
  assert.deepEqual(store.batchesBetween(105, 109), { 1: 3 });
  assert.deepEqual(store.batchesBetween(110, 130), { 1: 1, 8: 2 });
  assert.deepEqual(store.batchesBetween(500, 600), {});
});

test("the crosshair stands at the nearest time", () => {
  const times = [100, 110, 120];
  assert.deepEqual([0, 104, 106, 115, 119, 999].map((at) => nearest(times, at)), [0, 0, 1, 2, 2, 2]);
});

test("each version has series of its own, from the history on and from when it is first seen", () => {
  const store = SeriesStore.of({ ...HISTORY, versions: { 1: { rps: [1, 2, 3], p99: [5, null, 6] } } });
  const message = { ...POINT, versions: { 1: { rps: 4, p99: 7 }, 2: { rps: 9, p99: 8, errors: 1 } } };
  store.append(rowOf(message, FIGURES, ["1", "2"]));
  assert.deepEqual(store.series["rps@1"], [1, 2, 3, 4]);
  assert.deepEqual(store.series["p99@1"], [5, null, 6, 7]);
  assert.deepEqual(store.series["rps@2"], [null, null, null, 9]);
  assert.equal(rowOf(POINT, FIGURES, ["1"]).values["rps@1"], 0, "a version that is not told of did nothing");
  assert.equal(rowOf(POINT, FIGURES, ["1"]).values["p99@1"], null);
});

test("the newest values are shown until they are old", () => {
  const times = [100, 101, 102, 103];
  const rows = [[1, 2, null, null], [null, null, 3, null]];
  assert.equal(newestKnown(times, rows, 104), 2);
  assert.equal(newestKnown(times, rows, 109), 2);
  assert.equal(newestKnown(times, rows, 110), -1);
  assert.equal(newestKnown([0, 300, 600], [[1, 1, null]], 900), 1, "a long step is not old so soon");
  assert.equal(newestKnown(times, [[null, null, null, null]], 104), -1);
  assert.equal(newestKnown([], [[]], 104), -1);
});
