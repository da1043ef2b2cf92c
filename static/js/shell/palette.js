// The palette: a dialog that opens a model or a page by its name.

import { $, $$, need } from "../core/dom.js";

/** Resolved when the places are in the list. The Enter key waits for it. */
let placesLoaded = Promise.resolve();

/** Whether there are more models than the list can show: then the dashboard searches for the typed text. */
let more = false;

/** The number of requests for places: only the newest answer is shown. */
let asked = 0;

/** Opens the palette. */
export function openPalette() {
  const dialog = need("#palette", HTMLDialogElement);
  if (!dialog.open) dialog.showModal();
  const field = need("input", HTMLInputElement, dialog);
  field.value = "";
  field.focus();
  more = false;
  ask(field);
}

/**
 * Loads the places that match the typed text, and shows them.
 * @param {HTMLInputElement} field
 */
function ask(field) {
  placesLoaded = loadPlaces(field.value).then(() => choose(field.value));
}

/** Listens to the palette's field. */
export function startPalette() {
  const field = need("#palette input", HTMLInputElement);
  field.addEventListener("input", () => (more ? ask(field) : choose(field.value)));
  field.addEventListener("keydown", onKey);
}

/**
 * Loads the places each time the palette opens, so that no page must contain the names of all models.
 * @param {string} text
 */
async function loadPlaces(text) {
  const list = need("#palette-list", HTMLElement);
  const mine = ++asked;
  const answer = await fetch(`${list.dataset.source ?? ""}?q=${encodeURIComponent(text.trim())}`);
  if (!answer.ok) return;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  if (mine !== asked) return;
  more ||= page.querySelector("[data-more]") !== null;
  list.replaceChildren(...page.body.children);
}

/**
 * Returns the list item of a link.
 * @param {HTMLElement} link
 */
function itemOf(link) {
  return link.closest("li") ?? link;
}

/**
 * Shows the places whose names contain a text, and selects the first of them.
 * @param {string} text
 */
function choose(text) {
  const wanted = text.trim().toLowerCase();
  const links = $$("#palette-list a");
  for (const link of links) itemOf(link).hidden = !link.textContent?.toLowerCase().includes(wanted);
  const shown = links.filter((link) => !itemOf(link).hidden);
  select(links, shown[0]);
  need("#palette-none", HTMLElement).hidden = shown.length > 0;
}

/**
 * Marks one of the links as the link that Enter opens.
 * @param {HTMLElement[]} links
 * @param {HTMLElement | undefined} chosen
 */
function select(links, chosen) {
  for (const link of links) link.setAttribute("aria-selected", String(link === chosen));
  need("#palette input", HTMLInputElement).setAttribute("aria-activedescendant", chosen?.id ?? "");
}

/** @param {1 | -1} by */
function step(by) {
  const shown = $$("#palette-list a").filter((link) => !itemOf(link).hidden);
  const at = shown.findIndex((link) => link.getAttribute("aria-selected") === "true");
  const next = shown[(at + by + shown.length) % shown.length];
  select(shown, next);
  next?.scrollIntoView({ block: "nearest" });
}

/** @param {KeyboardEvent} event */
async function onKey(event) {
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    step(event.key === "ArrowDown" ? 1 : -1);
  } else if (event.key === "Enter") {
    event.preventDefault();
    await placesLoaded;
    $('#palette-list a[aria-selected="true"]')?.click();
  }
}
