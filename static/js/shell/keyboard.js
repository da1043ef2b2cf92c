// The keys that work on every page; the dialog with the id `help` lists them.

import { $, $$, need } from "../core/dom.js";
import { openPalette } from "./palette.js";

const TWO_KEYS_MS = 1500;

let goPressed = -Infinity;

/**
 * Returns whether a person types into a field.
 * @param {EventTarget | null} target
 */
function typing(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}

/**
 * Finds the link of the rail that a key opens after `g`.
 * @param {KeyboardEvent} event
 */
function placeOf(event) {
  if (event.timeStamp - goPressed >= TWO_KEYS_MS) return undefined;
  return $$("[data-shortcut]").find((link) => link.dataset.shortcut === event.key);
}

/**
 * Performs the action of a key.
 * @param {KeyboardEvent} event
 */
export function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || $("dialog[open]")) return;
  const place = placeOf(event);
  if (event.key === "/") {
    event.preventDefault();
    const filter = $("[data-filter]");
    if (filter) filter.focus();
    else openPalette();
  } else if (event.key === "?") {
    event.preventDefault();
    need("#help", HTMLDialogElement).showModal();
  } else if (event.key === "g") {
    goPressed = event.timeStamp;
  } else if (place) {
    goPressed = -Infinity;
    place.click();
  } else if (event.key === "n") {
    $("[data-new]")?.click();
  }
}
