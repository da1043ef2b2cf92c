// The points of a page's charts: history from the dashboard, and the live points after it.

import { MODEL_SERIES, PROCESS_SERIES, VERSION_SERIES, ofVersion } from "./kinds.js";

/**
 * @import { Point, Figures } from "../live/messages.js"
 *
 * @typedef {Record<string, number>} Batches batch size -> executions
 * @typedef {(number | null)[]} Values one value for each time; null if nothing was measured
 */

/**
 * The history of a range (dashboard/metrics/selectors.py). `batch` of the series are Batches.
 * @typedef {object} History
 * @property {number} step seconds between two times
 * @property {number[]} times unix seconds
 * @property {Record<string, Values> & { batch?: (Batches | null)[] }} series
 * @property {Record<string, Values>} process
 * @property {Record<string, Record<string, Values>>} [versions] the series of each version, on request
 */

/**
 * One moment of all series.
 * @typedef {object} Row
 * @property {number} at unix seconds
 * @property {Record<string, number | null>} values
 * @property {Batches | null} batch
 */

export class SeriesStore {
  /**
   * @param {number} step seconds between two times
   * @param {number[]} times unix seconds, rising
   * @param {Record<string, Values>} series
   * @param {(Batches | null)[]} batches one entry for each time
   */
  constructor(step, times, series, batches) {
    this.step = step;
    this.times = times;
    this.series = series;
    this.batches = batches;
  }

  /** Returns a store without points. */
  static empty() {
    const names = [...MODEL_SERIES.keys(), ...PROCESS_SERIES];
    return new SeriesStore(1, [], Object.fromEntries(names.map((name) => [name, []])), []);
  }

  /**
   * Returns a store with a history.
   * @param {History} history
   */
  static of({ step, times, series, process, versions = {} }) {
    const { batch = [], ...numbers } = series;
    const apart = Object.entries(versions).flatMap(([version, rows]) =>
      Object.entries(rows).map(([name, row]) => /** @type {[string, Values]} */ ([ofVersion(name, version), row])),
    );
    const copies = [...Object.entries({ ...numbers, ...process }), ...apart].map(([name, row]) => [name, [...row]]);
    return new SeriesStore(step, [...times], Object.fromEntries(copies), [...batch]);
  }

  /** The newest time; 0 if there are no points. */
  get newest() {
    return this.times.at(-1) ?? 0;
  }

  /** @param {Row} row a row that is later than all others */
  append({ at, values, batch }) {
    this.times.push(at);
    for (const name of Object.keys(values)) this.series[name] ??= [];
    for (const [name, row] of Object.entries(this.series)) put(row, this.times.length - 1, values[name] ?? null);
    put(this.batches, this.times.length - 1, batch);
  }

  /**
   * Returns the rows after a moment.
   * @param {number} moment unix seconds
   * @returns {Row[]}
   */
  after(moment) {
    const first = this.times.findIndex((at) => at > moment);
    if (first < 0) return [];
    return this.times.slice(first).map((at, index) => ({
      at,
      values: Object.fromEntries(Object.entries(this.series).map(([name, row]) => [name, row[first + index] ?? null])),
      batch: this.batches[first + index] ?? null,
    }));
  }

  /**
   * Removes the unfinished steps at the end, which would look like a decrease. Live points replace them.
   * @param {number} now unix seconds
   */
  dropUnfinished(now) {
    while (this.times.length && this.newest + this.step > now) this.times.pop();
    for (const row of [...Object.values(this.series), this.batches]) row.length = Math.min(row.length, this.times.length);
  }

  /**
   * Removes the points before a moment.
   * @param {number} moment unix seconds
   */
  dropBefore(moment) {
    const keep = this.times.findIndex((at) => at >= moment);
    if (keep <= 0) return;
    for (const row of [this.times, ...Object.values(this.series), this.batches]) row.splice(0, keep);
  }

  /**
   * Returns the executions of each batch size between two moments.
   * @param {number} start unix seconds
   * @param {number} end unix seconds
   * @returns {Batches}
   */
  batchesBetween(start, end) {
    /** @type {Batches} */
    const sums = {};
    this.times.forEach((at, index) => {
      if (at + this.step <= start || at > end) return;
      for (const [size, number] of Object.entries(this.batches[index] ?? {})) sums[size] = (sums[size] ?? 0) + number;
    });
    return sums;
  }
}

/**
 * Puts a value at an index of a list, and null at all missing indexes before it.
 * @template T
 * @param {(T | null)[]} row
 * @param {number} index
 * @param {T | null} value
 */
function put(row, index, value) {
  while (row.length < index) row.push(null);
  row[index] = value;
}

/**
 * Returns a live point as a row.
 * @param {Point} message
 * @param {(Figures & Record<string, unknown>) | undefined} figures the shown figures; undefined if there were no requests
 * @param {string[]} [versions] the versions with series of their own
 * @returns {Row}
 */
export function rowOf({ at, process, versions: byVersion = {} }, figures, versions = []) {
  /** @type {Record<string, number | null>} */
  const values = { rss: process.rss, cpu: process.cpu };
  (process.gpus ?? []).forEach(({ utilization, memory_used, memory_total }, number) => {
    values[`gpu@${number}`] = utilization ?? null;
    values[`gpu_memory@${number}`] = memory_total ? (memory_used ?? 0) / memory_total : null;
  });
  for (const [name, idle] of MODEL_SERIES) values[name] = /** @type {number | null | undefined} */ (figures?.[name]) ?? idle;
  for (const version of versions) {
    const of = /** @type {Record<string, unknown>} */ (/** @type {unknown} */ (byVersion[version] ?? {}));
    for (const [name, idle] of VERSION_SERIES) {
      values[ofVersion(name, version)] = /** @type {number | null | undefined} */ (of[name]) ?? idle;
    }
  }
  return { at, values, batch: figures?.batch ?? null };
}

// The newest values are shown for this time; after that they are too old.
const QUIET_AFTER_S = 5;

/**
 * Returns the index of the newest time at which any of the rows has a value; -1 if that is too long ago.
 * @param {number[]} times unix seconds, rising
 * @param {Values[]} rows
 * @param {number} end the end of the shown span in unix seconds
 */
export function newestKnown(times, rows, end) {
  const index = times.findLastIndex((_, place) => rows.some((row) => row[place] !== null && row[place] !== undefined));
  const step = times.length > 1 ? times[times.length - 1] - times[times.length - 2] : 1;
  return index >= 0 && end - times[index] <= QUIET_AFTER_S + 2 * step ? index : -1;
}

/**
 * Returns the index of the time that is nearest to a moment.
 * @param {number[]} times rising times, at least one
 * @param {number} moment
 */
export function nearest(times, moment) {
  let [low, high] = [0, times.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < moment) low = middle + 1;
    else high = middle;
  }
  return low > 0 && moment - times[low - 1] < times[low] - moment ? low - 1 : low;
}
