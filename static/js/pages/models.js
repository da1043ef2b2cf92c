// The list of models: shows live numbers, and begins an upload when a file is dropped anywhere.

import { $, need } from "../core/dom.js";
import { ReconnectingSocket, showFreshness } from "../live/socket.js";
import { keepMemory, rememberModels, writeHeld, writeModels } from "../live/figures.js";
import { fromDrop } from "../uploads/files.js";

/**
 * @import { Texts } from "../live/figures.js"
 * @import { Point } from "../live/messages.js"
 */

/** @type {Texts | null} */
let held = null;

/** Writes the figures, also over the figures of a refreshed region. */
function show() {
  writeModels();
  writeHeld(held);
}

/** @param {Point} message */
function take(message) {
  rememberModels(message);
  held = keepMemory(message);
  show();
}

new ReconnectingSocket("/ws/live/", {
  onMessage: take,
  onFresh: showFreshness,
});
document.body.addEventListener("htmx:afterSwap", show);

/**
 * Lets a file that is dropped anywhere on the page begin an upload.
 * @param {HTMLAnchorElement} target the link to the upload page
 */
function takeDrops(target) {
  const veil = need("#drop-veil", HTMLElement);
  const carriesFiles = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) veil.hidden = true;
  });
  addEventListener("drop", (event) => {
    if (!carriesFiles(event) || !event.dataTransfer) return;
    event.preventDefault();
    veil.hidden = true;
    upload(fromDrop(event.dataTransfer), target.href);
  });
}

/**
 * Shows the upload page in place of this one, because files cannot be passed to a new document.
 * @param {Promise<import("../uploads/files.js").ChosenFile[]>} dropped
 * @param {string} address the address of the upload page
 */
async function upload(dropped, address) {
  const files = await dropped;
  const page = new DOMParser().parseFromString(await (await fetch(address)).text(), "text/html");
  history.pushState({}, "", address);
  document.title = page.title;
  const main = document.adoptNode(need("#main", HTMLElement, page));
  need("#main", HTMLElement).replaceWith(main);
  window.htmx?.process(main);
  const { begin } = await import("./upload.js");
  begin(files);
}

const target = $("[data-new]");
if (target instanceof HTMLAnchorElement) takeDrops(target);
