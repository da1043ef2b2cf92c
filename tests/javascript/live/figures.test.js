// Numbers that follow the live feed.

import assert from "node:assert/strict";
import test from "node:test";

import { keepMemory, memoryTexts, processTexts, remember, rememberModels, texts, write } from "../../../static/js/live/figures.js";

const figures = (rps, more = {}) => ({ rps, errors: 0, pending: 0, p50: null, p99: null, ...more });

test("nothing is said of a model before anything is known of it", () => {
  assert.equal(texts("unknown"), null);
});

test("rates are means of the last five seconds", () => {
  for (const rps of [100, 1, 2, 3, 4, 5]) remember("rates", figures(rps));
  assert.equal(texts("rates").rps, "3/s");
});

test("times are the newest known, through seconds without a request", () => {
  remember("times", figures(1, { p50: 2, p99: 9 }));
  remember("times", figures(1, { p50: 1.5 }));
  remember("times", undefined);
  assert.deepEqual([texts("times").p50, texts("times").p99], ["1.5 ms", "9 ms"]);
});

test("times and errors go quiet with the traffic", () => {
  remember("quiet", figures(4, { p50: 2, p99: 9, errors: 1 }));
  for (let second = 0; second < 4; second += 1) remember("quiet", undefined);
  assert.equal(texts("quiet").p99, "9 ms");
  remember("quiet", undefined);
  assert.deepEqual([texts("quiet").p50, texts("quiet").p99, texts("quiet").errors], ["–", "–", "–"]);
});

test("without requests there is no share of errors", () => {
  remember("errors", figures(0));
  assert.equal(texts("errors").errors, null);
  remember("errors", figures(4, { errors: 1 }));
  assert.equal(texts("errors").errors, "25 %");
});

test("a model that is left out of a message did nothing in that second", () => {
  rememberModels({ models: { busy: figures(4, { pending: 2 }) }, total: figures(4) });
  rememberModels({ models: {}, total: figures(0) });
  assert.deepEqual([texts("busy").rps, texts("busy").pending, texts("").rps], ["2/s", "0", "2/s"]);
});

test("a model holds what its versions hold together", () => {
  const { a, c, ...held } = memoryTexts({ "a/1": 1024, "a/2": 1024, "team/b/1": 512, "c/1": 0 });
  assert.deepEqual([a, c], ["2 KiB", "–"]);
  assert.deepEqual(held, { "a/1": "1 KiB", "a/2": "1 KiB", "team/b/1": "512 B", "team/b": "512 B", "c/1": "–" });
  assert.deepEqual(memoryTexts(undefined), {});
  const floor = memoryTexts({ "a/1": 1024, "a/2": 1024, "c/1": 0 }, ["a/2", "c/1"]);
  assert.deepEqual(floor, { "a/1": "1 KiB", "a/2": "1 KiB of files", a: "2 KiB of files", "c/1": "–", c: "–" });
});

test("memory that a later message does not tell stays", () => {
  keepMemory({ memory: { "a/1": 1024, "b/1": 512 }, floors: ["a/1"], whole: true });
  assert.deepEqual(keepMemory({ memory: {}, floors: [], whole: false }), { "a/1": "1 KiB of files", a: "1 KiB of files", "b/1": "512 B", b: "512 B" });
  assert.equal(keepMemory({ memory: { "a/1": 2048 }, floors: [], whole: false }).a, "2 KiB");
  assert.deepEqual(keepMemory({ memory: { "c/1": 512 }, whole: true }), { "c/1": "512 B", c: "512 B" });
});

test("a process says what it uses, and its GPU only where it has one", () => {
  const process = { rss: 2 ** 30, cpu: 1.25, threads: 12, gpus: [] };
  assert.deepEqual(processTexts(process), { rss: "1 GiB", cpu: "1.25 cores", threads: "12", gpu: "none" });
  const gpu = { uuid: "GPU-1", utilization: 0.5, memory_used: 2 ** 30, memory_total: 2 ** 31 };
  assert.equal(processTexts({ ...process, gpus: [gpu] }).gpu, "50 % · 1 GiB");
  assert.equal(processTexts({ ...process, gpus: [{ ...gpu, utilization: null }] }).gpu, "– · 1 GiB");
  assert.equal(processTexts({ ...process, gpus: [gpu, { ...gpu, utilization: 1 }] }).gpu, "2 GPUs: 75 % · 2 GiB");
});

test("only what is known is written", () => {
  const elements = ["rps", "p50", "other"].map((now) => ({ dataset: { now }, textContent: "before" }));
  write(elements, "now", { rps: "3/s", p50: null });
  assert.deepEqual(elements.map(({ textContent }) => textContent), ["3/s", "before", "before"]);
});
