// Reads rows of spreadsheets and files: separated by tabs, semicolons or commas, and quoted if necessary.

/**
 * Returns the cells of each row. The separator is the first of these that the text contains: tab, semicolon, comma; or else blanks.
 * @param {string} text
 * @returns {string[][]}
 */
export function parseRows(text) {
  const plain = text.replace(/"[^"]*"/g, "");
  const separator = ["\t", ";", ","].find((one) => plain.includes(one));
  const rows = separator ? separated(text, separator) : text.split(/\r?\n/).map((line) => blanks(line));
  return rows.filter((row) => row.some((cell) => cell.trim() !== ""));
}

/** @param {string} line */
function blanks(line) {
  const quoted = /^\s*"((?:[^"]|"")*)"\s*$/.exec(line);
  return quoted ? [quoted[1].replaceAll('""', '"')] : /^[-+\d.eE\s]*$/.test(line) ? line.trim().split(/\s+/) : [line];
}

/**
 * @param {string} text
 * @param {string} separator
 */
function separated(text, separator) {
  /** @type {string[][]} */
  const rows = [[]];
  let [cell, quoted] = ["", false];
  for (let at = 0; at < text.length; at += 1) {
    const one = text[at];
    if (quoted && one === '"' && text[at + 1] === '"') [cell, at] = [`${cell}"`, at + 1];
    else if (one === '"' && (quoted || cell.trim() === "")) [quoted, cell] = [!quoted, quoted ? cell : ""];
    else if (!quoted && (one === separator || one === "\n")) {
      rows[rows.length - 1].push(cell.replace(/\r$/, ""));
      cell = "";
      if (one === "\n") rows.push([]);
    } else cell += one;
  }
  rows[rows.length - 1].push(cell.replace(/\r$/, ""));
  return rows;
}

/**
 * Removes a first row with the names of columns: none of its cells is a number, but some cells of the next row are.
 * @param {string[][]} rows
 * @returns {{ rows: string[][], header: boolean }}
 */
export function withoutHeader(rows) {
  const number = (/** @type {string} */ cell) => cell.trim() !== "" && !Number.isNaN(Number(cell.trim().replace(",", ".")));
  const header = rows.length > 1 && !rows[0].some(number) && rows[1].some(number);
  return { rows: header ? rows.slice(1) : rows, header };
}

/**
 * Returns rows of a given width. A single column or a single row is divided into such rows if its cells fill them. Throws an
 * Error with a sentence if the rows have another width.
 * @param {string[][]} rows
 * @param {number} width
 * @param {string} name the name of the tensor
 * @returns {string[][]}
 */
export function inWidth(rows, width, name) {
  if (rows.every((row) => row.length === width)) return rows;
  const cells = rows.flat();
  const line = rows.length === 1 || rows.every((row) => row.length === 1);
  if (line && cells.length % width === 0) {
    return Array.from({ length: cells.length / width }, (_, row) => cells.slice(row * width, (row + 1) * width));
  }
  const wrong = rows.findIndex((row) => row.length !== width);
  const columns = `${rows[wrong].length} column${rows[wrong].length === 1 ? "" : "s"}`;
  throw new Error(`Row ${wrong + 1} has ${columns}, but ${name} has ${width}.`);
}
