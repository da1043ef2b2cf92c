// Regions of a page that refresh themselves by htmx: asked again when something that they show has changed, not all the time.
//
// A region is an element with `data-refresh`, `hx-get` and `hx-trigger="changed"`. The dashboard names the tables that an
// answer was made from (its header Slipway-Reads), and says over /ws/changes/ which tables change. Where it cannot say so, and
// for figures of the past, regions are asked now and then all the same; one with `data-fed` has its figures from the live feed.

import { $, $$, need } from "../core/dom.js";
import { ReconnectingSocket } from "../live/socket.js";

/**
 * @import { ChangeMessage } from "../live/messages.js"
 *
 * What is known of a region; all times in milliseconds.
 * @typedef {object} Region
 * @property {Set<string> | null} reads the tables that it is made from; null while that is not known
 * @property {boolean} old whether it may show what is not so any more
 * @property {boolean} asking
 * @property {number} asked when it was asked last, or found
 * @property {number} pause how long it must go without being asked
 */

const TICK_MS = 500;
const METRICS = "dashboard_metricsample";
// How long it may go without being asked: while changes are pushed, while it shows the figures of the past, and without a socket.
const LONGEST_MS = 300_000;
const LONGEST_METRICS_MS = 60_000;
const LONGEST_UNPUSHED_MS = 10_000;
const PAUSE_MS = 1000;
const PAUSE_AFTER_FAILURE_MS = 3000;
// The dashboard is away once it has not been heard for so long; a restart of one worker is not. It speaks once a second, late
// where it is busy: on a connection that is open it may be silent for longer.
const AWAY_MS = 2500;
const HANGS_MS = 5000;
// A dashboard that takes long to answer is asked less often: after this many times as long as it took.
const PAUSE_OF_ANSWERS = 5;
const LONGEST_PAUSE_MS = 10_000;

/**
 * Says whether a region is to be asked again.
 * @param {Region} region
 * @param {number} now
 * @param {boolean} pushed whether changes are pushed at present
 * @param {boolean} [fed] whether its figures come from the live feed
 */
export function isDue(region, now, pushed, fed = false) {
  const age = now - region.asked;
  if (region.asking || age < region.pause) return false;
  const metrics = !fed && (!region.reads || region.reads.has(METRICS));
  return region.old || age >= (!pushed ? LONGEST_UNPUSHED_MS : metrics ? LONGEST_METRICS_MS : LONGEST_MS);
}

/**
 * Returns how long a region goes without being asked after an answer.
 * @param {number} took milliseconds until it was there
 */
export function pauseAfter(took) {
  return Math.min(Math.max(PAUSE_MS, PAUSE_OF_ANSWERS * took), LONGEST_PAUSE_MS);
}

/**
 * Notes which regions may show what is not so any more.
 * @param {Iterable<Region>} regions
 * @param {string[] | null} tables that have changed; null where nobody knows which
 */
export function markOld(regions, tables) {
  for (const region of regions) {
    const { reads } = region;
    if (!tables || !reads || tables.some((table) => reads.has(table))) region.old = true;
  }
}

/**
 * Address -> region: an element may be replaced by its own answer.
 * @type {Map<string, Region>}
 */
const regions = new Map();

/**
 * Returns what is known of the region at an address.
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

/** @param {Element} element */
const regionOf = (element) => regionAt(element.getAttribute("hx-get") ?? "");

/**
 * Says whether a person uses a region. A refresh must not take away what somebody opened, is asked about, is about to press,
 * focused by keyboard, types into or marked to copy.
 * @param {HTMLElement} region
 */
function inUse(region) {
  if ($("dialog[open]")) return true;
  const marked = getSelection();
  const selecting = marked !== null && !marked.isCollapsed && region.contains(marked.anchorNode);
  return selecting || $("details[open], :focus-visible, button:hover, :active", region) !== null;
}

/**
 * Writes beside a region how old it is, until it can refresh again.
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
    location.reload(); // redirected: whoever looks has been signed out
  } else if (inUse(elt)) {
    detail.shouldSwap = false;
    regionAt(path).old = true;
  }
}

/**
 * Says that the dashboard does not answer, and how old what the page shows is: nothing goes on being called ready meanwhile.
 * @param {number} silent milliseconds since it was heard
 * @param {boolean} away
 */
function showAway(silent, away) {
  const note = $("#away");
  if (!note) return;
  document.body.classList.toggle("is-away", away);
  note.hidden = !away;
  const said = `The dashboard does not answer. This page shows what was so ${Math.round(silent / 1000)} s ago; it goes on by itself when the dashboard is back.`;
  if (away) need("p", HTMLElement, note).textContent = said;
}

/** Keeps the regions of the page as what they show is. */
export function followChanges() {
  let known = document.body.dataset.mark ?? "";
  let speaks = false; // whether it has said something on the present connection, as it does at once
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
  body.addEventListener("htmx:beforeRequest", onAsk);
  body.addEventListener("htmx:afterRequest", onAnswer);
  body.addEventListener("htmx:beforeSwap", onSwap);
  look();
  setInterval(look, TICK_MS);
}
