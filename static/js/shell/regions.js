// Regions of a page that htmx reloads when their content has changed, instead of polling.
//
// A region is an element with `data-refresh`, `hx-get` and `hx-trigger="changed"`. The dashboard names the tables that an
// answer was made from (its header Slipway-Reads), and announces changed tables over /ws/changes/. Without announcements, and
// for stored figures, regions are reloaded from time to time. A region with `data-fed` gets its figures from the live feed.

import { $, $$, need } from "../core/dom.js";
import { ReconnectingSocket } from "../live/socket.js";

/**
 * @import { ChangeMessage } from "../live/messages.js"
 *
 * The state of a region; all times in milliseconds.
 * @typedef {object} Region
 * @property {Set<string> | null} reads the tables that the region is made from; null while they are unknown
 * @property {boolean} old whether the region may be out of date
 * @property {boolean} asking whether a request is under way
 * @property {number} asked the time of the last request for the region, or of its discovery
 * @property {number} pause the shortest time between two requests
 */

const TICK_MS = 500;
const METRICS = "dashboard_metricsample";
// The longest times without a reload: while changes are announced, for stored figures, and without a socket.
const LONGEST_MS = 300_000;
const LONGEST_METRICS_MS = 60_000;
const LONGEST_UNPUSHED_MS = 10_000;
const PAUSE_MS = 1000;
const PAUSE_AFTER_FAILURE_MS = 3000;
// The dashboard counts as away after this silence, which is longer than the restart of one worker. It sends a message each
// second, but a busy dashboard is late: on an open connection it may be silent for longer.
const AWAY_MS = 2500;
const HANGS_MS = 5000;
// A slow dashboard gets fewer requests: the pause after an answer is this many times as long as the answer took.
const PAUSE_OF_ANSWERS = 5;
const LONGEST_PAUSE_MS = 10_000;
// A pointer that rests longer on a button is not about to press it: the button may even have come below it.
const RESTS_MS = 5000;

/**
 * Returns whether a region must be reloaded.
 * @param {Region} region
 * @param {number} now
 * @param {boolean} pushed whether changes are announced at the moment
 * @param {boolean} [fed] whether its figures are from the live feed
 */
export function isDue(region, now, pushed, fed = false) {
  const age = now - region.asked;
  if (region.asking || age < region.pause) return false;
  const metrics = !fed && (!region.reads || region.reads.has(METRICS));
  return region.old || age >= (!pushed ? LONGEST_UNPUSHED_MS : metrics ? LONGEST_METRICS_MS : LONGEST_MS);
}

/**
 * Returns the pause of a region after an answer.
 * @param {number} took the milliseconds of the request
 */
export function pauseAfter(took) {
  return Math.min(Math.max(PAUSE_MS, PAUSE_OF_ANSWERS * took), LONGEST_PAUSE_MS);
}

/**
 * Marks the regions that may be out of date.
 * @param {Iterable<Region>} regions
 * @param {string[] | null} tables the changed tables; null if they are unknown
 */
export function markOld(regions, tables) {
  for (const region of regions) {
    const { reads } = region;
    if (!tables || !reads || tables.some((table) => reads.has(table))) region.old = true;
  }
}

/**
 * Address -> region. The key is the address, because an answer may replace the element itself.
 * @type {Map<string, Region>}
 */
const regions = new Map();

/**
 * Returns the region at an address.
 * @param {string} address
 * @returns {Region}
 */
function regionAt(address) {
  const known = regions.get(address);
  if (known) return known;
  const found = { reads: null, old: false, asking: false, asked: Date.now(), pause: PAUSE_MS };
  regions.set(address, found);
  return found;
}

let movedAt = 0; // when the pointer last moved

/** @param {Element} element */
const regionOf = (element) => regionAt(element.getAttribute("hx-get") ?? "");

/**
 * Returns whether a person uses a region. A refresh must not remove an element that a person opened, focused by keyboard, types
 * into, selected or is about to press, nor a question to a person.
 * @param {HTMLElement} region
 */
function inUse(region) {
  if ($("dialog[open]")) return true;
  const marked = getSelection();
  const selecting = marked !== null && !marked.isCollapsed && region.contains(marked.anchorNode);
  const used = Date.now() - movedAt < RESTS_MS ? "button:hover, :active" : ":active";
  return selecting || $(`details[open], :focus-visible, ${used}`, region) !== null;
}

/**
 * Shows the age of a region next to it, until the region can be refreshed again.
 * @param {HTMLElement} region
 * @param {boolean} fresh
 */
function showAge(region, fresh) {
  const beside = region.parentElement && $("[data-region-note]", region.parentElement);
  const note = beside ?? $("[data-region-note]");
  if (fresh) region.dataset.at = String(Date.now());
  region.classList.toggle("is-stale", !fresh);
  if (!note) return;
  note.hidden = fresh;
  const seconds = Math.round((Date.now() - Number(region.dataset.at ?? performance.timeOrigin)) / 1000);
  note.textContent = `last update ${seconds} s ago, reconnecting`;
}

/** @param {CustomEvent<HtmxRequestDetail>} event */
function onAsk({ detail }) {
  const { elt, path } = detail.requestConfig;
  if (elt.matches("[data-refresh]")) Object.assign(regionAt(path), { asking: true, old: false, asked: Date.now() });
}

/** @param {CustomEvent<HtmxRequestDetail>} event */
function onAnswer({ detail: { requestConfig, successful, xhr } }) {
  const { elt, path } = requestConfig;
  if (!elt.matches("[data-refresh]")) return;
  const region = regionAt(path);
  region.asking = false;
  region.pause = successful ? pauseAfter(Date.now() - region.asked) : PAUSE_AFTER_FAILURE_MS;
  if (successful) region.reads = new Set((xhr.getResponseHeader("Slipway-Reads") ?? "").split(" "));
  else region.old = true;
  showAge(elt, successful);
}

/** @param {CustomEvent<HtmxRequestDetail>} event */
function onSwap({ detail }) {
  const { elt, path } = detail.requestConfig;
  if (!elt.matches("[data-refresh]")) return;
  if (new URL(detail.xhr.responseURL).pathname !== new URL(path, location.href).pathname) {
    detail.shouldSwap = false;
    location.reload(); // redirected to the sign-in: the session has ended
  } else if (inUse(elt)) {
    detail.shouldSwap = false;
    regionAt(path).old = true;
  }
}

/**
 * Shows that the dashboard does not answer, and the age of the page, so that nobody takes old states for current ones.
 * @param {number} silent milliseconds since the last message of the dashboard
 * @param {boolean} away
 */
function showAway(silent, away) {
  const note = $("#away");
  if (!note) return;
  document.body.classList.toggle("is-away", away);
  note.hidden = !away;
  const text = `The dashboard does not answer. This page shows the state of ${Math.round(silent / 1000)} s ago; it refreshes by itself when the dashboard is back.`;
  if (away) need("p", HTMLElement, note).textContent = text;
}

/** Keeps the regions of the page up to date. */
export function followChanges() {
  let known = document.body.dataset.mark ?? "";
  let speaks = false; // whether a message arrived on the current connection; the first message arrives immediately
  /** @param {ChangeMessage} message */
  const take = (message) => {
    speaks = true;
    heard = Date.now();
    if (message.type === "alive") return;
    const all = $$("[data-refresh]").map(regionOf);
    if (message.type === "changed") markOld(all, message.tables);
    else if (message.mark !== known) markOld(all, null);
    known = message.mark;
    document.dispatchEvent(new CustomEvent("tables", { detail: message.type === "changed" ? message.tables : null }));
    look();
  };
  /** @type {ReconnectingSocket<ChangeMessage>} */
  const socket = new ReconnectingSocket("/ws/changes/", { onMessage: take, onClose: () => (speaks = false) });
  let heard = Date.now();
  const look = () => {
    const silent = Date.now() - heard;
    const away = silent > (speaks ? HANGS_MS : AWAY_MS);
    showAway(silent, away);
    for (const element of $$("[data-refresh]")) {
      const due = isDue(regionOf(element), Date.now(), socket.open && !away, "fed" in element.dataset);
      if (due && !inUse(element)) window.htmx?.trigger(element, "changed");
    }
  };
  const { body } = document;
  body.addEventListener("pointermove", () => (movedAt = Date.now()), { passive: true });
  body.addEventListener("htmx:beforeRequest", onAsk);
  body.addEventListener("htmx:afterRequest", onAnswer);
  body.addEventListener("htmx:beforeSwap", onSwap);
  look();
  setInterval(look, TICK_MS);
}
