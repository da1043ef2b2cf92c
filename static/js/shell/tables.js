// Tables with many columns: a narrow screen shows each row as a card, with the column's name next to each value.

import { $, $$ } from "../core/dom.js";

const MANY = 4; // fewer columns fit on the screen of a phone

/** Prepares every table with many columns of the page. Must be called again after a refresh. */
export function labelTables() {
  for (const table of $$(".table-wrap > table")) {
    const heads = $$(":scope > thead > tr > *", table).map(nameOf);
    if (heads.length < MANY) continue;
    table.classList.add("cards");
    for (const row of $$(":scope > tbody > tr", table)) labelRow(row, heads);
    keepRoles(table);
  }
}

/**
 * Returns the visible name of a column; "" if the name is only for screen readers.
 * @param {HTMLElement} head
 */
function nameOf(head) {
  return $(".sr-only", head) ? "" : (head.textContent?.trim() ?? "");
}

/**
 * Writes the column's name into each cell of a row.
 * @param {HTMLElement} row
 * @param {string[]} heads
 */
function labelRow(row, heads) {
  for (const [index, cell] of [...row.children].entries()) {
    if (cell instanceof HTMLTableCellElement && cell.colSpan === 1) cell.dataset.label = heads[index] ?? "";
  }
}

/**
 * Sets the roles of a table's parts, because a screen reader does not recognize a table with another layout.
 * @param {HTMLElement} table
 */
function keepRoles(table) {
  table.setAttribute("role", "table");
  for (const part of $$("thead, tbody", table)) part.setAttribute("role", "rowgroup");
  for (const row of $$("tr", table)) row.setAttribute("role", "row");
  for (const cell of $$("td", table)) cell.setAttribute("role", "cell");
  for (const head of $$("th", table)) head.setAttribute("role", head.closest("thead") ? "columnheader" : "rowheader");
}
