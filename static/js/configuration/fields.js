// The values of a configuration's form, and their comparison.

export const RESHAPE = "reshape"; // the only list for which empty and missing mean different things

/**
 * A value from the server or from a control. Empty, missing and false values may be written in several ways.
 * @typedef {string | number | boolean | null | undefined | Plain[] | { [name: string]: Plain }} Plain
 * @typedef {{ [name: string]: Plain }} Fields
 */

/**
 * Returns the text of a value in a control.
 * @param {Plain} value
 * @returns {string}
 */
export function shown(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/**
 * Returns the text of a reshape in a control: "[ ]" for an empty reshape, "" for a missing one.
 * @param {Plain} value
 * @returns {string}
 */
export function shownReshape(value) {
  const text = shown(value).replace(/[[\]\s]/g, "").replaceAll(",", ", ");
  if (text) return text;
  return Array.isArray(value) || (typeof value === "string" && value.includes("[")) ? "[ ]" : "";
}

/**
 * Returns whether two values mean the same. Spaces, the order of names, and forms of empty values do not matter.
 * @param {Plain} left
 * @param {Plain} right
 */
export function same(left, right) {
  return JSON.stringify(canonical(left)) === JSON.stringify(canonical(right));
}

/**
 * Returns the fields whose values differ from those in `others`.
 * @param {Fields} fields
 * @param {Fields} others
 * @returns {Fields}
 */
export function differing(fields, others) {
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => !same(value, others[name])));
}

/**
 * Returns the canonical form of a value: a list of numbers as text, an object as sorted pairs.
 * @param {Plain} value
 * @returns {Plain}
 */
function canonical(value) {
  if (Array.isArray(value)) {
    return value.some((item) => typeof item === "object" && item !== null) ? value.map(canonical) : value.join(",");
  }
  if (value === null || value === undefined) return "";
  if (typeof value !== "object") return String(value).replace(/\s+/g, "");
  const names = Object.keys(value).sort();
  return names.map((name) => [name, name === RESHAPE ? shownReshape(value[name]) : canonical(value[name])]).filter(([, part]) => part !== "" && part !== "false");
}
