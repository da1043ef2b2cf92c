// What an output is to a person: the scores of classes, or a table of elements.

import { threeDigits } from "../core/format.js";
import { flat } from "./tensors.js";

/**
 * @typedef {import("./wire.js").Element} Element
 */

/**
 * An output as the server answers it.
 * @typedef {object} Output
 * @property {string} name
 * @property {string} datatype
 * @property {number[]} shape
 * @property {import("./tensors.js").NestedList} data
 */

const CLASSES_MOST = 5000;
const COLUMNS_MOST = 64;
const ROWS_MOST = 50;

/**
 * Returns the scores of one row of classes that add up to 1; null for any other output.
 * @param {Output} output
 * @returns {number[] | null}
 */
export function classScores({ shape, data, datatype }) {
  const one = shape.slice(0, -1).every((dim) => dim === 1);
  if (!/^(FP|BF)/.test(datatype) || !one) return null;
  const values = flat(data).map(Number);
  if (values.length < 2 || values.length > CLASSES_MOST) return null;
  const sum = values.reduce((total, value) => total + value, 0);
  return values.every((value) => value >= -1e-6 && value <= 1 + 1e-6) && Math.abs(sum - 1) < 0.02 ? values : null;
}

/**
 * Returns the classes with the highest scores, the highest first.
 * @param {number[]} scores
 * @param {number} most
 * @returns {{ score: number, index: number }[]}
 */
export function bestClasses(scores, most) {
  return scores.map((score, index) => ({ score, index })).sort((a, b) => b.score - a.score).slice(0, most);
}

/**
 * Returns the first elements of an output in rows: one for each index but the last, as long as its last dimension.
 * @param {Output} output
 * @returns {{ rows: string[][], total: number, cut: boolean }} how many elements there are, and whether rows are left out
 */
export function elementRows({ shape, data }) {
  const values = flat(data);
  const width = shape.length > 1 ? (shape.at(-1) ?? 1) : 1;
  const count = Math.min(Math.ceil(values.length / Math.max(width, 1)), ROWS_MOST);
  const rows = Array.from({ length: count }, (_, row) => {
    const cells = values.slice(row * width, (row + 1) * width).slice(0, COLUMNS_MOST);
    return cells.map(elementText);
  });
  return { rows, total: values.length, cut: values.length > count * width };
}

/**
 * Writes one element.
 * @param {Element} value
 * @returns {string}
 */
function elementText(value) {
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return Math.abs(value) < 0.001 || Math.abs(value) >= 1e6 ? value.toExponential(2) : threeDigits(value);
}
