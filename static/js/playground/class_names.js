// The names of an output's classes: from the model's label file, or given by a person, whose browser keeps them.

/**
 * Returns the names that this browser keeps of an output's classes; undefined where it keeps none.
 * @param {string} model
 * @param {string} output
 * @returns {string[] | undefined}
 */
export function keptNames(model, output) {
  const text = stored(() => localStorage.getItem(key(model, output)));
  return text ? text.split("\n") : undefined;
}

/**
 * Keeps names in this browser, one for each line; an empty text forgets them.
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
 * Returns what the browser's storage gives; undefined where a person's settings close it.
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
