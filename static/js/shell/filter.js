// Filters of lists: each filter hides the rows that do not match, and keeps its words in the address.

import { $, $$ } from "../core/dom.js";

/**
 * Returns whether a text contains every word of a filter.
 * @param {string} text
 * @param {string} filter
 */
export function holdsWords(text, filter) {
  const lower = text.toLowerCase();
  return filter.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}

/** Applies all filters of the page. */
export function applyFilters() {
  for (const input of document.querySelectorAll("[data-filter]")) if (input instanceof HTMLInputElement) narrow(input);
}

/**
 * Applies a filter after a person typed into it.
 * @param {EventTarget | null} target the field
 */
export function onFilterInput(target) {
  if (!(target instanceof HTMLInputElement) || !target.matches("[data-filter]")) return;
  narrow(target);
  remember(target);
}

/**
 * Clears a filter and leaves its field when a person presses Escape in it.
 * @param {KeyboardEvent} event
 */
export function onFilterKey({ key, target }) {
  if (key !== "Escape" || !(target instanceof HTMLInputElement) || !target.matches("[data-filter]")) return;
  target.value = "";
  target.dispatchEvent(new Event("input", { bubbles: true }));
  target.blur();
}

/** @param {HTMLInputElement} input */
function narrow(input) {
  const rows = $$(`${input.dataset.filter} [data-row]`);
  for (const row of rows) row.hidden = !holdsWords(row.dataset.row || (row.textContent ?? ""), input.value);
  const none = $(`${input.dataset.filter} [data-none]`);
  if (none) none.hidden = rows.some((row) => !row.hidden);
}

/** @param {HTMLInputElement} input */
function remember(input) {
  const url = new URL(location.href);
  if (input.value.trim()) url.searchParams.set(input.name, input.value.trim());
  else url.searchParams.delete(input.name);
  url.searchParams.delete("page");
  history.replaceState(history.state, "", url);
  for (const region of $$('[data-refresh][hx-trigger*="narrowed"]')) {
    const address = new URL(region.getAttribute("hx-get") ?? "", location.href);
    address.search = url.search;
    region.setAttribute("hx-get", address.pathname + address.search);
    window.htmx?.process(region);
    window.htmx?.trigger(region, "narrowed"); // matching rows may be on another page
  }
}
