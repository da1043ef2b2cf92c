// Axes that do not jump: round bounds that grow at once and shrink late, ticks with our own units, local time.

import { threeDigits } from "./format.js";

const TIME_STEPS = [1, 2, 5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000];

/** The smallest of 1, 2 and 5 times a power of ten (of two for bytes) that is not below `value`. */
export function roundBound(value, binary = false) {
  if (!(value > 0)) return 1;
  if (binary) {
    const unit = 1024 ** Math.floor(Math.log(value) / Math.log(1024));
    return roundBound(value / unit) * unit;
  }
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].find((step) => value <= step * power * 1.0001) * power;
}

/** A bound for `highest`, given the present one: it grows when it must and shrinks when it is far too large. */
export function steadyBound(highest, present, binary) {
  const wanted = roundBound(highest * 1.08, binary);
  return !present || wanted > present || wanted < present / 4 ? wanted : present;
}

export function valueTicks(bound, format) {
  const first = Number(threeDigits(bound)[0]);
  const parts = first === 5 ? 5 : 4;
  const values = Array.from({ length: parts + 1 }, (_, index) => (bound * index) / parts);
  return { values, texts: values.map((value) => (value === 0 ? "0" : format(value))) };
}

/** Ticks of a logarithmic axis from `low` to `high`: powers of ten, with 2 and 5 between them when there are few. */
export function logTicks(low, high, format) {
  const steps = high / low > 1000 ? [1] : [1, 2, 5];
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const step of steps) values.push(step * 10 ** power);
  }
  const shown = values.filter((value) => value >= low * 0.99 && value <= high * 1.01);
  return { values: shown, texts: shown.map(format) };
}

/** Ticks at round local times between two moments (unix seconds), at most `most` of them. */
export function timeTicks(start, end, most) {
  const step = TIME_STEPS.find((size) => (end - start) / size <= most) ?? 864000;
  const offset = new Date(start * 1000).getTimezoneOffset() * 60;
  const first = Math.ceil((start - offset) / step) * step + offset;
  const values = [];
  for (let at = first; at <= end; at += step) values.push(at);
  return { values, texts: values.map((at) => timeText(at, step)) };
}

function timeText(at, step) {
  const moment = new Date(at * 1000);
  if (step >= 86400) return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  const text = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: step < 60 ? "2-digit" : undefined });
  return text === "00:00" ? moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" }) : text;
}

export function momentText(at) {
  return new Date(at * 1000).toLocaleString("en-GB", { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", second: "2-digit" });
}
