// The names that a person gave to the classes of an output, which the browser keeps.

/**
 * Returns the names that this browser keeps for an output's classes; undefined if there are none.
 * @param {string} model
 * @param {string} output
 * @returns {string[] | undefined}
 */
export function keptNames(model, output) {
  const text = stored(() => localStorage.getItem(key(model, output)));
  return text ? text.split("\n") : undefined;
}

/**
 * Keeps the names in this browser, one name on each line. An empty text removes all names.
 * @param {string} model
 * @param {string} output
 * @param {string} text
 */
export function keepNames(model, output, text) {
  const lines = text.split(/\r?\n/).map((line) => line.trim()).join("\n").trim();
  stored(() => (lines ? localStorage.setItem(key(model, output), lines) : localStorage.removeItem(key(model, output))));
}

/**
 * @param {string} model
 * @param {string} output
 */
function key(model, output) {
  return `slipway.classes.${model}.${output}`;
}

/**
 * Returns the result of `use`, which uses the browser's storage; undefined if a person's settings forbid that.
 * @template T
 * @param {() => T} use
 */
function stored(use) {
  try {
    return use();
  } catch {
    return undefined;
  }
}
