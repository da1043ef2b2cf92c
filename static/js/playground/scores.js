// Chooses the best view of an output: scores of classes, a ranking of many numbers, or a table of elements.

import { threeDigits } from "../core/format.js";
import { elementCount } from "./tensors.js";

/**
 * @typedef {import("./datatypes.js").Element} Element
 * @typedef {import("./wire.js").Output} Output
 * @typedef {{ score: number, index: number }} Place the place of a class in a ranking
 */

const COLUMNS_MOST = 64;
const ROWS_MOST = 50;
const LONG = 20; // for rows with at least this many elements, a ranking is more useful than a table
const BATCH_MOST = 5_000_000; // the most elements that are ranked

/**
 * Returns the best view of an output: "shares" of classes that add up to 1, a "ranking" of one long row, the best classes of each
 * row of a "batch", or a "table".
 * @param {Output} output
 * @param {boolean} [named] whether its classes have names
 * @returns {"shares" | "ranking" | "batch" | "table"}
 */
export function outputKind(output, named = false) {
  const { shape, datatype, data } = output;
  const width = shape.at(-1) ?? 0;
  if (!/^(FP|BF)/.test(datatype) || width < 2 || data.length > BATCH_MOST) return "table";
  const rows = elementCount(shape.slice(0, -1));
  if (rows === 1) return addsUp(data, 0, width) ? "shares" : width >= LONG || named ? "ranking" : "table";
  const ranked = shape.length === 2 && rows > 1 && (named || width >= LONG || everyRow(rows, (row) => addsUp(data, row * width, width)));
  return ranked ? "batch" : "table";
}

/**
 * @param {number} rows
 * @param {(row: number) => boolean} holds
 */
function everyRow(rows, holds) {
  for (let row = 0; row < Math.min(rows, ROWS_MOST); row += 1) if (!holds(row)) return false;
  return true;
}

/**
 * Returns whether a row's elements are shares that add up to 1, apart from the rounding of small floats.
 * @param {ArrayLike<Element>} data
 * @param {number} begin
 * @param {number} width
 */
function addsUp(data, begin, width) {
  let sum = 0;
  for (let index = begin; index < begin + width; index += 1) {
    const value = Number(data[index]);
    if (!(value >= -1e-6 && value <= 1 + 1e-6)) return false;
    sum += value;
  }
  return Math.abs(sum - 1) < 0.02;
}

/**
 * Returns the classes with the highest scores of a row, the highest first; NaN comes last.
 * @param {ArrayLike<Element>} scores
 * @param {number} most
 * @param {number} [begin] the index at which the row begins
 * @param {number} [width] the number of elements in the row
 * @returns {Place[]}
 */
export function bestClasses(scores, most, begin = 0, width = scores.length) {
  /** @type {Place[]} */
  const best = [];
  for (let index = 0; index < width; index += 1) {
    const score = Number(scores[begin + index]);
    if (best.length === most && !higher(score, best[most - 1].score)) continue;
    const place = best.findIndex((other) => higher(score, other.score));
    best.splice(place < 0 ? best.length : place, 0, { score, index });
    best.length = Math.min(best.length, most);
  }
  return best;
}

/**
 * @param {number} one
 * @param {number} other
 */
function higher(one, other) {
  return one > other || (Number.isNaN(other) && !Number.isNaN(one));
}

/**
 * Returns the first elements of an output in rows of the length of its last dimension.
 * @param {Output} output
 * @returns {{ rows: string[][], total: number, cut: boolean }} total: the number of elements; cut: whether some are left out
 */
export function elementRows({ shape, data }) {
  const width = shape.length > 1 ? (shape.at(-1) ?? 1) : 1;
  const total = data.length;
  const count = Math.min(Math.ceil(total / Math.max(width, 1)), ROWS_MOST);
  const rows = Array.from({ length: count }, (_, row) => {
    const length = Math.min(width, COLUMNS_MOST, total - row * width);
    return Array.from({ length }, (__, column) => elementText(data[row * width + column]));
  });
  return { rows, total, cut: total > count * Math.min(width, COLUMNS_MOST) };
}

/**
 * Writes one element.
 * @param {Element} value
 * @returns {string}
 */
export function elementText(value) {
  if (value instanceof Uint8Array) return `${value.length} bytes`;
  if (typeof value !== "number" || Number.isInteger(value) || !Number.isFinite(value)) return String(value);
  return Math.abs(value) < 0.001 || Math.abs(value) >= 1e6 ? value.toExponential(2) : threeDigits(value);
}
