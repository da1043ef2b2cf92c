// The keys that work on every page; the dialog with the id `help` lists them.

import { $, need } from "../core/dom.js";
import { openPalette } from "./palette.js";

/**
 * The second key after `g` -> the place it goes to.
 * @type {Record<string, string>}
 */
const PLACES = { o: "overview", m: "models", j: "jobs", s: "servers", a: "activity", e: "settings" };
const TWO_KEYS_MS = 1500;

let goPressed = -Infinity;

/**
 * Says whether a person types into something.
 * @param {EventTarget | null} target
 */
function typing(target) {
  return target instanceof Element && target.closest("input, textarea, select, [contenteditable]") !== null;
}

/**
 * Does what a key stands for.
 * @param {KeyboardEvent} event
 */
export function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target) || $("dialog[open]")) return;
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
  } else if (PLACES[event.key] && event.timeStamp - goPressed < TWO_KEYS_MS) {
    goPressed = -Infinity;
    $(`[data-place="${PLACES[event.key]}"]`)?.click();
  } else if (event.key === "n") {
    $("[data-new]")?.click();
  }
}
