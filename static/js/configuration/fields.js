// The values of a configuration's form, and whether two of them mean the same.

export const RESHAPE = "reshape"; // of a tensor: the one list of which an empty one is not none

/**
 * A value as the server tells it or as a control holds it. What is empty, missing or false may be written in several ways.
 * @typedef {string | number | boolean | null | undefined | Plain[] | { [name: string]: Plain }} Plain
 * @typedef {{ [name: string]: Plain }} Fields
 */

/**
 * Returns what a control shows of a value.
 * @param {Plain} value
 * @returns {string}
 */
export function shown(value) {
  if (value === null || value === undefined) return "";
  return Array.isArray(value) ? value.join(", ") : String(value);
}

/**
 * Returns what a control shows of a reshape: "[ ]" for the empty one, which is something else than none.
 * @param {Plain} value
 * @returns {string}
 */
export function shownReshape(value) {
  const text = shown(value).replace(/[[\]\s]/g, "").replaceAll(",", ", ");
  if (text) return text;
  return Array.isArray(value) || (typeof value === "string" && value.includes("[")) ? "[ ]" : "";
}

/**
 * Says whether two values mean the same: spaces, the order of names, and how nothing is written do not matter.
 * @param {Plain} left
 * @param {Plain} right
 */
export function same(left, right) {
  return JSON.stringify(canonical(left)) === JSON.stringify(canonical(right));
}

/**
 * Returns the fields that differ from others.
 * @param {Fields} fields
 * @param {Fields} others
 * @returns {Fields}
 */
export function differing(fields, others) {
  return Object.fromEntries(Object.entries(fields).filter(([name, value]) => !same(value, others[name])));
}

/**
 * Returns a value as every way to write it comes to: a list of numbers as its text, an object as its sorted pairs.
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
