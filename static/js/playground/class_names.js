// The names of an output's classes that a person gave and the browser keeps.

/**
 * Returns the names that this browser keeps for an output's classes; undefined for none.
 * @param {string} model
 * @param {string} output
 * @returns {string[] | undefined}
 */
export function keptNames(model, output) {
  const text = stored(() => localStorage.getItem(key(model, output)));
  return text ? text.split("\n") : undefined;
}

/**
 * Keeps names in this browser, one for each line; an empty text removes them.
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
 * Returns the result of using the browser's storage; undefined if a person's settings forbid that.
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
