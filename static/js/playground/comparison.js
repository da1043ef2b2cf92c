// The comparison of two answers to the same input, output by output.

import { el } from "../core/dom.js";
import { latency } from "../core/format.js";
import { serverTime } from "./answer.js";
import { bestClasses, elementText } from "./scores.js";

/**
 * @import { Asked } from "./asking.js"
 * @import { Output } from "./wire.js"
 *
 * @typedef {object} Difference the difference of an output in two answers
 * @property {string} name
 * @property {string} other the reason why the two outputs cannot be compared; "" if they can
 * @property {number} differ the number of unequal elements
 * @property {number} total
 * @property {number | null} largest the largest difference of two numbers; null if there are no numbers
 * @property {number | null} relative the largest difference relative to the greater of the two numbers
 * @property {number | null} mean
 * @property {boolean | null} sameBest whether the highest element of every row has the same index; null if there are no rows
 */

/**
 * Returns the differences between the outputs of two answers. Outputs that only one answer has come last.
 * @param {Output[]} ones
 * @param {Output[]} others
 * @returns {Difference[]}
 */
export function differences(ones, others) {
  const both = ones.flatMap((one) => {
    const other = others.find(({ name }) => name === one.name);
    return other ? [difference(one, other)] : [];
  });
  const alone = [...ones.filter(({ name }) => !others.some((other) => other.name === name)), ...others.filter(({ name }) => !ones.some((one) => one.name === name))];
  return [...both, ...alone.map(({ name }) => incomparable(name, "only one answer has it"))];
}

/**
 * @param {string} name
 * @param {string} other
 * @returns {Difference}
 */
function incomparable(name, other) {
  return { name, other, differ: 0, total: 0, largest: null, relative: null, mean: null, sameBest: null };
}

/**
 * @param {Output} one
 * @param {Output} two
 * @returns {Difference}
 */
function difference(one, two) {
  if (one.datatype !== two.datatype) return incomparable(one.name, `${one.datatype} against ${two.datatype}`);
  const shapes = [one.shape, two.shape].map((shape) => `[${shape.join(", ")}]`);
  if (shapes[0] !== shapes[1]) return incomparable(one.name, `${shapes[0]} against ${shapes[1]}`);
  const numbers = /^(U?INT|FP|BF)/.test(one.datatype);
  let [differ, largest, relative, sum] = [0, 0, 0, 0];
  for (let index = 0; index < one.data.length; index += 1) {
    const [a, b] = [one.data[index], two.data[index]];
    if (same(a, b)) continue;
    differ += 1;
    if (!numbers) continue;
    const apart = Math.abs(Number(a) - Number(b));
    const far = Number.isNaN(apart) ? Infinity : apart;
    largest = Math.max(largest, far);
    relative = Math.max(relative, far / Math.max(Math.abs(Number(a)), Math.abs(Number(b))) || Infinity);
    sum += far;
  }
  const width = one.shape.at(-1) ?? 0;
  const found = { name: one.name, other: "", differ, total: one.data.length };
  if (!numbers) return { ...found, largest: null, relative: null, mean: null, sameBest: null };
  const best = /^(FP|BF)/.test(one.datatype) && width > 1 && one.data.length ? sameBest(one, two, width) : null;
  return { ...found, largest, relative, mean: one.data.length ? sum / one.data.length : 0, sameBest: best };
}

/**
 * @param {import("./datatypes.js").Element} a
 * @param {import("./datatypes.js").Element} b
 */
function same(a, b) {
  if (a instanceof Uint8Array && b instanceof Uint8Array) return a.length === b.length && a.every((one, index) => one === b[index]);
  return a === b || (a !== a && b !== b);
}

/**
 * @param {Output} one
 * @param {Output} two
 * @param {number} width
 */
function sameBest(one, two, width) {
  for (let begin = 0; begin < one.data.length; begin += width) {
    const [a, b] = [one, two].map(({ data }) => bestClasses(data, 1, begin, width)[0].index);
    if (a !== b) return false;
  }
  return true;
}

/**
 * Returns the view of two versions' answers to the same input.
 * @param {[Asked, Asked]} asked
 * @returns {HTMLElement}
 */
export function comparisonView([one, two]) {
  const names = [one, two].map(versionName);
  const times = [one, two].map(({ answer, took }, index) => {
    const server = answer && serverTime(answer);
    return `${names[index]}: ${server === null ? `${latency(took)} in this browser` : `${latency(server)} measured in the server`}`;
  });
  const hint = el("div", { class: "hint num play-times" }, times.map((time) => el("p", {}, time)));
  if (!one.answer || !two.answer) return el("div", { class: "card-body stack tight" }, hint);
  const rows = differences(one.answer.outputs, two.answer.outputs).map(differenceRow);
  const head = ["Output", "Differ", "Largest", "Relative", "Mean", "Best class"].map((name, index) =>
    el("th", { scope: "col", class: index && index < 5 ? "num" : "" }, name),
  );
  const table = el("table", { class: "differences" }, el("thead", {}, el("tr", {}, head)), el("tbody", {}, rows));
  return el("div", {}, el("div", { class: "card-body" }, hint), el("div", { class: "table-wrap", tabindex: "0" }, table));
}

/** @param {Asked} asked */
export function versionName({ version, answer }) {
  const number = answer?.model_version;
  if (!version) return number ? `Version ${number}` : "Server's choice";
  if (/^\d+$/.test(version)) return `Version ${version}`;
  return number ? `${version} (version ${number})` : version;
}

/** @param {Difference} found */
function differenceRow(found) {
  const name = el("th", { scope: "row", class: "mono" }, found.name);
  if (found.other) return el("tr", { "data-difference": found.name }, name, el("td", { colspan: 5 }, `Cannot be compared: ${found.other}.`));
  const number = (/** @type {number | null} */ value) => el("td", { class: "num" }, value === null ? "–" : elementText(value));
  const percent = found.relative === null ? "–" : `${elementText(found.relative * 100)} %`;
  const best = found.sameBest === null ? "–" : found.sameBest ? "the same" : "another";
  const differ = found.differ ? `${found.differ} of ${found.total}` : "none";
  return el(
    "tr",
    { "data-difference": found.name, "data-same": String(found.differ === 0) },
    name,
    el("td", { class: "num" }, differ),
    number(found.largest),
    el("td", { class: "num" }, percent),
    number(found.mean),
    el("td", { class: found.sameBest === false ? "differs" : "" }, best),
  );
}
