// Steady axes: round bounds that grow immediately and shrink late, ticks with Slipway's own units, local time.

import { threeDigits } from "../core/format.js";

/**
 * @typedef {object} Ticks
 * @property {number[]} values the values of the ticks
 * @property {string[]} texts the labels of the ticks
 *
 * @typedef {(value: number) => string} WriteValue
 */

// Seconds between two ticks of a time axis, and the step if all of these are too short.
const TIME_STEPS = [
  1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000,
];
const LONGEST_TIME_STEP = 864000;
const DAY = 86400;

/**
 * Returns the smallest of 1, 2 and 5 times a power of ten that is not below `value`; 1 if the value is not positive.
 * @param {number} value
 * @param {boolean} [binary] whether the bound is round in KiB, MiB and so on, for bytes
 * @returns {number}
 */
export function roundBound(value, binary = false) {
  if (!(value > 0)) return 1;
  if (binary) {
    const unit = 1024 ** Math.floor(Math.log(value) / Math.log(1024));
    return roundBound(value / unit) * unit;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 5].find((step) => value <= step * power * 1.0001) ?? 10) * power;
}

/**
 * Returns an axis's bound for the highest value. The bound grows immediately, but shrinks only if it is over four times too large.
 * @param {number} highest
 * @param {number | undefined} present the current bound of the axis
 * @param {boolean} [binary] see roundBound
 * @returns {number}
 */
export function steadyBound(highest, present, binary = false) {
  const wanted = roundBound(highest * 1.08, binary);
  return !present || wanted > present || wanted < present / 4 ? wanted : present;
}

/**
 * Returns the ticks from 0 to a round bound, in four or five equal steps.
 * @param {number} bound
 * @param {WriteValue} write
 * @param {boolean} [whole] for a count of few things: no tick is between two whole numbers
 * @returns {Ticks}
 */
export function valueTicks(bound, write, whole = false) {
  const first = Number(threeDigits(bound)[0]);
  const parts = first === 5 || whole ? 5 : 4;
  const all = Array.from({ length: parts + 1 }, (_, index) => (bound * index) / parts);
  const values = whole ? all.filter(Number.isInteger) : all;
  return { values, texts: values.map((value) => (value === 0 ? "0" : write(value))) };
}

/**
 * Returns the ticks of a logarithmic axis: powers of ten, and also twice and five times each of them if there are only few.
 * @param {number} low the lowest value of the axis, above 0
 * @param {number} high
 * @param {WriteValue} write
 * @returns {Ticks}
 */
export function logTicks(low, high, write) {
  const steps = high / low > 1000 ? [1] : [1, 2, 5];
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) values.push(step * 10 ** power);
  }
  const shown = values.filter((value) => value >= low * 0.99 && value <= high * 1.01);
  return { values: shown, texts: shown.map(write) };
}

/**
 * Returns ticks at round local times between two moments (unix seconds).
 * @param {number} start
 * @param {number} end
 * @param {number} most the most steps between the moments
 * @returns {Ticks}
 */
export function timeTicks(start, end, most) {
  const step = TIME_STEPS.find((size) => (end - start) / size <= most) ?? LONGEST_TIME_STEP;
  const offset = new Date(start * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((start - offset) / step) * step + offset;
  const values = [];
  for (let at = first; at <= end; at += step) values.push(at);
  return { values, texts: values.map((at) => timeText(at, step)) };
}

/**
 * Writes a tick's moment: the time, or the date at midnight.
 * @param {number} at unix seconds
 * @param {number} step seconds between two ticks
 * @returns {string}
 */
function timeText(at, step) {
  const moment = new Date(at * 1000);
  const day = moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  if (step >= DAY) return day;
  const second = step < 60 ? "2-digit" : undefined;
  const time = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second });
  return time === "00:00" ? day : time;
}

/**
 * Writes a moment to the second, in local time.
 * @param {number} at unix seconds
 * @returns {string}
 */
export function momentText(at) {
  const time = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return new Date(at * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", ...time });
}
