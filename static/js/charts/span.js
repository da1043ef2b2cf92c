// Spans of time: what the buttons and keys of the charts make of the shown span.

/**
 * @typedef {[number, number]} Span two moments in unix seconds
 * @typedef {"earlier" | "later" | "in" | "out"} Move
 */

export const SHORTEST_S = 5;
export const LONGEST_S = 30 * 86400;

/** @type {Record<string, Move>} */
export const MOVES = { earlier: "earlier", later: "later", in: "in", out: "out" };

/** The keys on a chart, for those moves that they make. @type {Record<string, Move>} */
export const MOVE_KEYS = { "+": "in", "=": "in", "-": "out", PageUp: "earlier", PageDown: "later" };

/**
 * Returns the span after a move: half a span earlier or later, half as long or twice as long. It never ends in the future.
 * @param {Span} span
 * @param {Move} move
 * @param {number} now unix seconds
 * @param {number} [around] the moment that stays at its place when the length changes; by default the middle
 * @returns {Span}
 */
export function moved([start, end], move, now, around = (start + end) / 2) {
  const length = end - start;
  if (move === "earlier") return [start - length / 2, end - length / 2];
  if (move === "later") return endingBy([start + length / 2, end + length / 2], now);
  const wanted = Math.min(LONGEST_S, Math.max(SHORTEST_S, move === "in" ? length / 2 : length * 2));
  const from = around - ((around - start) / length) * wanted;
  return endingBy([from, from + wanted], now);
}

/**
 * Returns a span of the same length that ends now at the latest.
 * @param {Span} span
 * @param {number} now
 * @returns {Span}
 */
function endingBy([start, end], now) {
  const late = Math.max(0, end - now);
  return [start - late, end - late];
}

/**
 * Returns the span that two fields of local time give, or a sentence that says what is wrong with them.
 * @param {string} from the value of a field of type datetime-local
 * @param {string} to
 * @returns {Span | string}
 */
export function spanOfFields(from, to) {
  const [start, end] = [from, to].map((text) => Date.parse(text) / 1000);
  if (Number.isNaN(start) || Number.isNaN(end)) return "Choose both moments.";
  if (end - start < SHORTEST_S) return "The end must be after the start.";
  if (end - start > LONGEST_S) return "Choose at most 30 days.";
  return [start, end];
}

/**
 * Writes a moment for a field of type datetime-local.
 * @param {number} at unix seconds
 */
export function fieldText(at) {
  const moment = new Date(Math.round(at) * 1000);
  const offset = moment.getTimezoneOffset() * 60_000;
  return new Date(moment.getTime() - offset).toISOString().slice(0, 19);
}
