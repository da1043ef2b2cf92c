// The list of servers: shows the current resources of each process.

import { $$ } from "../core/dom.js";
import { ReconnectingSocket, showFreshness } from "../live/socket.js";
import { processTexts, write } from "../live/figures.js";

/**
 * @import { Texts } from "../live/figures.js"
 * @import { Point } from "../live/messages.js"
 */

/**
 * Server -> the texts of its process.
 * @type {Map<string, Texts>}
 */
const newest = new Map();

/** Writes the figures, also over the figures of a refreshed region. */
function show() {
  for (const [name, values] of newest) write($$(`[data-server="${CSS.escape(name)}"] [data-process]`), "process", values);
}

/** @param {Point} message */
function take(message) {
  newest.set(message.server, processTexts(message.process));
  show();
}

new ReconnectingSocket("/ws/live/?each=yes", {
  onMessage: take,
  onFresh: showFreshness,
});
document.body.addEventListener("htmx:afterSwap", show);
