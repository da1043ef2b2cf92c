// Regions that htmx refreshes: when a refresh must wait, and how old a region is that could not refresh.

import { $ } from "../core/dom.js";

/**
 * Says whether a person uses a region. A refresh must not take away what somebody opened, is asked about, is about to press,
 * focused by keyboard, types into or marked to copy.
 * @param {HTMLElement} region
 */
export function inUse(region) {
  if ($("dialog[open]")) return true;
  const marked = getSelection();
  const selecting = marked !== null && !marked.isCollapsed && region.contains(marked.anchorNode);
  return selecting || $("details[open], :focus-visible, button:hover, :active", region) !== null;
}

/**
 * Writes beside a region how old it is, until it can refresh again.
 * @param {EventTarget | null} target what was refreshed, or should have been
 * @param {boolean} fresh
 */
export function markRegion(target, fresh) {
  const region = target instanceof Element ? target.closest("[data-refresh]") : null;
  if (!(region instanceof HTMLElement)) return;
  const beside = region.parentElement && $("[data-region-note]", region.parentElement);
  const note = beside ?? $("[data-region-note]");
  if (fresh) region.dataset.at = String(Date.now());
  region.classList.toggle("is-stale", !fresh);
  if (!note) return;
  note.hidden = fresh;
  const seconds = Math.round((Date.now() - Number(region.dataset.at ?? performance.timeOrigin)) / 1000);
  note.textContent = `last update ${seconds} s ago, reconnecting`;
}
