// The shell of every page: keys, the palette, themes, relative times, dialogs, copying, filters, regions that refresh themselves.

import { $, icon, complain, need } from "./core/dom.js";
import { ago } from "./core/format.js";
import { csrfToken } from "./core/request.js";
import { confirmFirst } from "./shell/confirm.js";
import { applyFilters, onFilterInput, onFilterKey } from "./shell/filter.js";
import { onKey } from "./shell/keyboard.js";
import { openPalette, startPalette } from "./shell/palette.js";
import { followChanges } from "./shell/regions.js";
import { reachScrollers, showPresentTab } from "./shell/scrollers.js";
import { labelTables } from "./shell/tables.js";

const YEAR_S = 31536000;
const COPIED_MS = 1600;
const TIMES_MS = 5000;

/** Updates every relative time. */
function keepTimesCurrent() {
  for (const time of document.querySelectorAll("time")) {
    if (time.dataset.ago === undefined) continue;
    const text = ago(Date.parse(time.dateTime));
    if (time.textContent !== text) time.textContent = text;
  }
}

/**
 * Copies a text, or the text of the element that a selector finds, and confirms it on the button.
 * @param {HTMLElement} button
 */
async function copy(button) {
  const { copyText, copy: selector = "" } = button.dataset;
  await navigator.clipboard.writeText(copyText ?? need(selector, HTMLElement).textContent ?? "");
  const label = (/** @type {string} */ text) => (button.classList.contains("icon-only") ? [] : [text]);
  button.replaceChildren(icon("ready"), ...label("Copied"));
  setTimeout(() => button.replaceChildren(icon("copy"), ...label("Copy")), COPIED_MS);
}

/**
 * Sets the theme of this and all later pages.
 * @param {string} choice "light", "dark" or "system"
 */
function setTheme(choice) {
  const root = document.documentElement;
  if (choice === "system") delete root.dataset.theme;
  else root.dataset.theme = choice;
  const age = choice === "system" ? 0 : YEAR_S;
  document.cookie = `slipway_theme=${choice}; path=/; max-age=${age}; samesite=lax`;
  document.dispatchEvent(new CustomEvent("theme"));
}

/** Shows failures in the page's icon and title, and the number of firing alerts in the rail. */
function showHealth() {
  const { favicon = "", failing, firing = "0" } = $("#health")?.dataset ?? {};
  if (failing === undefined) return;
  const link = need('link[rel="icon"]', HTMLLinkElement);
  if (link.getAttribute("href") !== favicon) link.setAttribute("href", favicon);
  const plain = document.title.replace(/^\(\d+ failed\) /, "");
  document.title = Number(failing) > 0 ? `(${failing} failed) ${plain}` : plain;
  need("#rail-alerts-count", HTMLElement).textContent = firing;
  need("#rail-alerts", HTMLElement).hidden = firing === "0";
}

/**
 * Opens the dialog that a button or link names.
 * @param {string} id
 */
function openDialog(id) {
  const dialog = document.getElementById(id);
  if (id === "palette") openPalette();
  else if (dialog instanceof HTMLDialogElement) dialog.showModal();
}

/**
 * Closes the dialog or removes the note that a button belongs to.
 * @param {Element} closer
 */
function close(closer) {
  const part = closer.closest("dialog, .note");
  if (part instanceof HTMLDialogElement) part.close();
  else part?.remove();
}

/**
 * Follows the link of a table's row when a person clicks elsewhere in the row.
 * @param {Element} target
 */
function openRow(target) {
  const row = target.closest("tr[data-href]");
  if (!row || target.closest("a, button, input, select, label, form") || getSelection()?.toString()) return;
  $("a", row)?.click();
}

/** @param {MouseEvent} event */
function onClick(event) {
  const { target } = event;
  if (!(target instanceof Element)) return;
  const dialog = target.closest("[data-dialog]")?.getAttribute("data-dialog");
  if (dialog) {
    event.preventDefault();
    openDialog(dialog);
  }
  const closer = target.closest("[data-close]");
  if (closer) close(closer);
  if (target instanceof HTMLDialogElement) target.close(); // a click on the dialog's backdrop
  const copier = target.closest("[data-copy], [data-copy-text]");
  if (copier instanceof HTMLElement) {
    const beside = copier.closest(".code, .row") ?? copier;
    copy(copier).then(
      () => complain(beside, ""),
      () => complain(beside, "The browser did not allow copying. Select the text instead."),
    );
  }
  openRow(target);
}

document.addEventListener("keydown", onKey);
document.addEventListener("keydown", onFilterKey);
document.addEventListener("submit", confirmFirst);
document.addEventListener("click", onClick);
document.addEventListener("input", (event) => onFilterInput(event.target));
document.addEventListener("change", ({ target }) => {
  if (target instanceof HTMLInputElement && target.matches("[data-theme-choice]")) setTheme(target.value);
  const field = target instanceof HTMLInputElement || target instanceof HTMLSelectElement ? target : null;
  if (field?.matches("[data-submit]") && field.checkValidity()) field.form?.requestSubmit();
});
if ($("#palette")) startPalette();

document.body.addEventListener("htmx:configRequest", ({ detail }) => {
  detail.headers["X-CSRFToken"] = csrfToken();
});
document.body.addEventListener("htmx:afterSwap", () => {
  keepTimesCurrent();
  applyFilters();
  labelTables();
  showHealth();
  reachScrollers();
});
addEventListener("resize", () => {
  reachScrollers();
  showPresentTab();
});

applyFilters();
labelTables();
keepTimesCurrent();
showHealth();
reachScrollers();
showPresentTab();
if (document.body.dataset.mark !== undefined) followChanges();
setInterval(keepTimesCurrent, TIMES_MS);
