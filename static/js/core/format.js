// Writes numbers, sizes and times for pages, by the rules of dashboard/templatetags/units.py.

/** @typedef {number | null | undefined} Measured a number; null or undefined if nothing was measured */

const NOTHING = "–";
/** @type {[string, number][]} */
const PREFIXES = [["T", 1e12], ["G", 1e9], ["M", 1e6], ["k", 1e3], ["", 1]];
const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];
/** @type {[number, number, string][]} */
const AGES = [[60, 1, "s"], [3600, 60, "min"], [86400, 3600, "h"], [86400 * 60, 86400, "d"]];
/** @type {[string, number, string, number][]} */
const LENGTHS = [["d", 86400, "h", 3600], ["h", 3600, "min", 60], ["min", 60, "s", 1]];

/**
 * Returns whether a value is missing.
 * @param {Measured} value
 * @returns {value is null | undefined}
 */
function missing(value) {
  return value === null || value === undefined || Number.isNaN(value);
}

/**
 * Writes a number with at most three significant digits, never in exponent form.
 * @param {number} value
 * @returns {string}
 */
export function threeDigits(value) {
  if (value === 0) return "0";
  const magnitude = Math.abs(value);
  const decimals = magnitude >= 100 ? 0 : magnitude >= 10 ? 1 : magnitude >= 1 ? 2 : 3;
  const text = value.toFixed(decimals);
  return text.includes(".") ? text.replace(/0+$/, "").replace(/\.$/, "") : text;
}

/**
 * Returns three digits and the prefix of the unit.
 * @param {number} value
 * @returns {[string, string]}
 */
function scaled(value) {
  const [prefix, factor] = PREFIXES.find(([, size]) => Math.abs(value) >= 0.9995 * size) ?? ["", 1];
  return [threeDigits(value / factor), prefix];
}

/**
 * Writes 1234567 as `1.23 M`.
 * @param {Measured} value
 * @returns {string}
 */
export function count(value) {
  return missing(value) ? NOTHING : scaled(value).join(" ").trim();
}

/**
 * Writes a number per second: 8912.3 as `8.91 k/s`.
 * @param {Measured} value
 * @returns {string}
 */
export function rate(value) {
  if (missing(value)) return NOTHING;
  const [digits, prefix] = scaled(value);
  return prefix ? `${digits} ${prefix}/s` : `${digits}/s`;
}

/**
 * Writes milliseconds as `124 µs`, `1.24 ms` or `12.4 s`.
 * @param {Measured} ms
 * @returns {string}
 */
export function latency(ms) {
  if (missing(ms)) return NOTHING;
  if (ms === 0) return "0 ms";
  if (ms < 0.9995) return `${threeDigits(ms * 1e3)} µs`;
  return ms < 999.5 ? `${threeDigits(ms)} ms` : `${threeDigits(ms / 1e3)} s`;
}

/**
 * Writes a share from 0 to 1 as a percentage.
 * @param {Measured} value
 * @returns {string}
 */
export function share(value) {
  if (missing(value)) return NOTHING;
  if (value > 0 && value < 0.0001) return "< 0.01 %";
  return value < 1 && value >= 0.9995 ? "> 99.9 %" : `${threeDigits(value * 100)} %`;
}

/**
 * Writes bytes as `12.4 MiB`.
 * @param {Measured} bytes
 * @returns {string}
 */
export function size(bytes) {
  if (missing(bytes)) return NOTHING;
  let [value, power] = [bytes, 0];
  for (; Math.abs(value) >= 1023.5 && power < SIZES.length - 1; power += 1) value /= 1024;
  return `${threeDigits(value)} ${SIZES[power]}`;
}

/**
 * Writes a duration: `250 ms`, `42 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`.
 * @param {Measured} seconds
 * @returns {string}
 */
export function duration(seconds) {
  if (missing(seconds)) return NOTHING;
  if (seconds < 1) return latency(Math.max(seconds, 0) * 1000);
  if (seconds < 10) return `${threeDigits(seconds)} s`;
  const whole = Math.round(seconds);
  for (const [name, length, small, part] of LENGTHS) {
    if (whole < length) continue;
    const rest = Math.floor((whole % length) / part);
    return `${Math.floor(whole / length)} ${name}${rest ? ` ${rest} ${small}` : ""}`;
  }
  return `${whole} s`;
}

/**
 * Writes a moment as `just now`, `42 s ago` or `in 2 h`; after two months, as the date.
 * @param {number} moment unix milliseconds
 * @param {number} [now] unix milliseconds
 * @returns {string}
 */
export function ago(moment, now = Date.now()) {
  const seconds = (now - moment) / 1000;
  if (Math.abs(seconds) < 5) return "just now";
  for (const [limit, length, unit] of AGES) {
    if (Math.abs(seconds) >= limit) continue;
    const amount = `${Math.floor(Math.abs(seconds) / length)} ${unit}`;
    return seconds > 0 ? `${amount} ago` : `in ${amount}`;
  }
  return new Date(moment).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
}
