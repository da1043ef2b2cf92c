// The lines of a unified diff, with their kinds.

/** @typedef {{ kind: "add" | "del" | "at" | null, text: string }} DiffLine "at": a place in the file */

/** @type {Record<string, DiffLine["kind"]>} */
const KINDS = { "+": "add", "-": "del", "@": "at" };

/**
 * Returns the lines of a unified diff without its head, which names the files.
 * @param {string} diff
 * @returns {DiffLine[]}
 */
export function diffLines(diff) {
  const lines = diff.split("\n").filter((line, index) => !(index < 2 && /^(---|\+\+\+)/.test(line)));
  return lines.map((text) => ({ kind: KINDS[text[0]] ?? null, text }));
}
