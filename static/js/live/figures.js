// Updates numbers of a page from the live feed, also after refreshes of the regions around them.

import { $$ } from "../core/dom.js";
import { count, latency, rate, share, size, threeDigits } from "../core/format.js";

/**
 * @import { Figures, Point, ProcessFigures } from "./messages.js"
 * @typedef {Pick<Figures, "rps" | "errors" | "pending" | "p50" | "p99">} ShownFigures
 * @typedef {{ [name: string]: string | null | undefined }} Texts name -> text to show; null keeps the shown text
 */

const WINDOW = 5;
const NOTHING = "–";
/** @type {ShownFigures} */
const IDLE = { rps: 0, errors: 0, pending: 0, p50: null, p99: null };
/**
 * Model name, or "" for all models -> the figures of the last seconds, the newest last.
 * @type {Map<string, ShownFigures[]>}
 */
const recent = new Map();

/**
 * Keeps one second of a model ("" means all models).
 * @param {string} name
 * @param {ShownFigures | undefined} figures undefined if the model had no requests
 */
export function remember(name, figures) {
  const rows = recent.get(name) ?? [];
  rows.push(figures ?? IDLE);
  if (rows.length > WINDOW) rows.shift();
  recent.set(name, rows);
}

/**
 * Keeps one second of every known model, and of all models together.
 * @param {Point} message
 */
export function rememberModels(message) {
  const names = new Set([...recent.keys(), ...Object.keys(message.models)].filter(Boolean));
  names.forEach((name) => remember(name, message.models[name]));
  remember("", message.total);
}

/**
 * Returns the texts of a model ("" means all models): rates are means of the last seconds, times are the newest values. Without
 * requests in these seconds there are neither times nor a share of errors.
 * @param {string} name
 * @returns {Texts | null} null before the first point
 */
export function texts(name) {
  const rows = recent.get(name);
  if (!rows) return null;
  const [rps, errors] = [mean(rows, "rps"), mean(rows, "errors")];
  const [p50, p99] = [newest(rows, "p50"), newest(rows, "p99")];
  const unmeasured = rows.length < WINDOW ? null : NOTHING; // the first text of the page stays until the window is full
  return {
    rps: rate(rps),
    p50: p50 === null ? unmeasured : latency(p50),
    p99: p99 === null ? unmeasured : latency(p99),
    errors: rps ? share(errors / rps) : unmeasured,
    pending: count(rows.at(-1)?.pending ?? 0),
  };
}

/**
 * @param {ShownFigures[]} rows
 * @param {"rps" | "errors"} key
 */
function mean(rows, key) {
  return rows.reduce((sum, row) => sum + (row[key] ?? 0), 0) / rows.length;
}

/**
 * @param {ShownFigures[]} rows
 * @param {"p50" | "p99"} key
 */
function newest(rows, key) {
  return rows.findLast((row) => row[key] !== null && row[key] !== undefined)?.[key] ?? null;
}

/**
 * Returns the texts of memory: by "model/version" for each version, and by "model" for all versions of a model together.
 * @param {Record<string, number> | undefined} memory "model/version" -> bytes
 * @param {string[]} [floors] the keys whose bytes are a lower bound
 * @returns {Texts} a dash for a version that is not loaded
 */
export function memoryTexts(memory, floors = []) {
  const held = { ...memory };
  const more = new Set(floors);
  for (const [key, bytes] of Object.entries(memory ?? {})) {
    const name = key.slice(0, key.lastIndexOf("/"));
    held[name] = (held[name] ?? 0) + bytes;
    if (bytes && more.has(key)) more.add(name);
  }
  const text = (/** @type {string} */ key, /** @type {number} */ bytes) => (more.has(key) ? `${size(bytes)} of files` : size(bytes));
  return Object.fromEntries(Object.entries(held).map(([key, bytes]) => [key, bytes ? text(key, bytes) : NOTHING]));
}

/** @type {Record<string, number>} */
let memoryOfAll = {};
/** @type {Set<string>} */
let floorsOfAll = new Set();
/** @type {Texts | null} */
let textsOfAll = null;

/**
 * Keeps the memory that messages about all models tell: the first one of a connection has every version, later ones only changes.
 * @param {Point} message
 * @returns {Texts | null} the texts of memoryTexts
 */
export function keepMemory({ memory, floors = [], whole }) {
  if (whole) [memoryOfAll, floorsOfAll] = [{}, new Set()];
  const changed = Object.keys(memory);
  if (!whole && !changed.length) return textsOfAll;
  for (const key of changed) floorsOfAll.delete(key);
  for (const key of floors) floorsOfAll.add(key);
  Object.assign(memoryOfAll, memory);
  textsOfAll = memoryTexts(memoryOfAll, [...floorsOfAll]);
  return textsOfAll;
}

/**
 * Returns the texts of a server's process.
 * @param {ProcessFigures} figures
 * @returns {Texts}
 */
export function processTexts({ rss, cpu, threads, gpus }) {
  const known = (gpus ?? []).flatMap(({ utilization }) => utilization ?? []);
  const mean = known.length ? known.reduce((sum, one) => sum + one) / known.length : null;
  const several = gpus?.length > 1 ? `${gpus.length} GPUs: ` : "";
  const used = gpus?.length ? `${several}${share(mean)} · ${size(gpus.reduce((sum, one) => sum + (one.memory_used ?? 0), 0))}` : "none";
  return { rss: size(rss), cpu: `${threeDigits(cpu)} cores`, threads: count(threads), gpu: used };
}

/**
 * Writes texts into elements; a data attribute of each element names its text.
 * @param {HTMLElement[]} elements
 * @param {string} attribute the name of the data attribute, as in `dataset`
 * @param {Texts | null} values
 */
export function write(elements, attribute, values) {
  if (!values) return;
  for (const element of elements) {
    const text = values[element.dataset[attribute] ?? ""];
    if (text !== null && text !== undefined && element.textContent !== text) element.textContent = text;
  }
}

/**
 * Writes the memory of models and versions at every place where the page shows it.
 * @param {Texts | null} held
 */
export function writeHeld(held) {
  write($$("[data-held]"), "held", held);
}

/** Writes the figures of every model in a table of models. */
export function writeModels() {
  for (const row of $$("tr[data-model]")) write($$("[data-value]", row), "value", texts(row.dataset.model ?? ""));
}
