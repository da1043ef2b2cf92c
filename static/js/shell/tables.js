// Tables of many columns, which a narrow screen shows as a list of cards: each number then stands beside its column's name.

import { $, $$ } from "../core/dom.js";

const MANY = 4; // fewer columns fit a phone as they are

/** Prepares every such table of the page, and again the rows of those that refresh. */
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
 * Returns the name of a column as a person sees it; "" for one whose name is for screen readers alone.
 * @param {HTMLElement} head
 */
function nameOf(head) {
  return $(".sr-only", head) ? "" : (head.textContent?.trim() ?? "");
}

/**
 * Writes the name of its column into each cell of a row.
 * @param {HTMLElement} row
 * @param {string[]} heads
 */
function labelRow(row, heads) {
  for (const [index, cell] of [...row.children].entries()) {
    if (cell instanceof HTMLTableCellElement && cell.colSpan === 1) cell.dataset.label = heads[index] ?? "";
  }
}

/**
 * Says what a table's parts are: laid out as something else they are no table to a screen reader otherwise.
 * @param {HTMLElement} table
 */
function keepRoles(table) {
  table.setAttribute("role", "table");
  for (const part of $$("thead, tbody", table)) part.setAttribute("role", "rowgroup");
  for (const row of $$("tr", table)) row.setAttribute("role", "row");
  for (const cell of $$("td", table)) cell.setAttribute("role", "cell");
  for (const head of $$("th", table)) head.setAttribute("role", head.closest("thead") ? "columnheader" : "rowheader");
}
