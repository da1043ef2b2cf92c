// Numbers that follow the live feed, wherever a page shows them; they outlive the refreshes of what is around them.

import { $$ } from "./dom.js";
import { count, latency, rate, share, size, threeDigits } from "./format.js";

const WINDOW = 5;
const recent = new Map();

/** The figures of the last few seconds of one model ("" = all): rates as means, times as the newest known. */
export function remember(name, figures) {
  const rows = recent.get(name) ?? [];
  rows.push(figures ?? { rps: 0, errors: 0, pending: 0, p50: null, p99: null });
  if (rows.length > WINDOW) rows.shift();
  recent.set(name, rows);
}

function mean(rows, key) {
  return rows.reduce((sum, row) => sum + (row[key] ?? 0), 0) / rows.length;
}

function newest(rows, key) {
  return rows.findLast((row) => row[key] !== null && row[key] !== undefined)?.[key];
}

export function texts(name) {
  const rows = recent.get(name);
  if (!rows) return null;
  const [rps, errors] = [mean(rows, "rps"), mean(rows, "errors")];
  return {
    rps: rate(rps),
    p50: newest(rows, "p50") === undefined ? null : latency(newest(rows, "p50")),
    p99: newest(rows, "p99") === undefined ? null : latency(newest(rows, "p99")),
    errors: rps ? share(errors / rps) : null,
    pending: count(rows.at(-1).pending ?? 0),
  };
}

export function write(elements, attribute, values) {
  if (!values) return;
  for (const element of elements) {
    const text = values[element.dataset[attribute]];
    if (text !== null && text !== undefined && element.textContent !== text) element.textContent = text;
  }
}

export function writeHeld(texts) {
  write($$("[data-held]"), "held", texts);
}

export function writeModels() {
  for (const row of $$("tr[data-model]")) write($$("[data-value]", row), "value", texts(row.dataset.model));
}

export function rememberModels(message) {
  const names = new Set([...recent.keys(), ...Object.keys(message.models)].filter(Boolean));
  names.forEach((name) => remember(name, message.models[name]));
  remember("", message.total);
}

// "model/version", and "model" for all its versions -> what it holds; a model that is not loaded holds nothing.
export function memoryTexts(memory) {
  const held = { ...memory };
  for (const [key, bytes] of Object.entries(memory ?? {})) {
    const name = key.slice(0, key.lastIndexOf("/"));
    held[name] = (held[name] ?? 0) + bytes;
  }
  return Object.fromEntries(Object.entries(held).map(([key, bytes]) => [key, bytes ? size(bytes) : "–"]));
}

export function processTexts({ rss, cpu, threads, gpus }) {
  const gpu = gpus?.[0];
  const used = gpu && (gpu.utilization > 1 ? gpu.utilization / 100 : gpu.utilization);
  return { rss: size(rss), cpu: `${threeDigits(cpu)} cores`, threads: count(threads), gpu: gpu ? `${share(used)} · ${size(gpu.memory_used)}` : "none" };
}
