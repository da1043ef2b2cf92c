// One server: memory, CPU and GPU, and the log that follows.

import { $$, need } from "../core/dom.js";
import { Board } from "../charts/board.js";
import { ReconnectingSocket } from "../live/socket.js";
import { memoryTexts, processTexts, write, writeHeld } from "../live/figures.js";

/**
 * @import { Texts } from "../live/figures.js"
 * @import { LogLines } from "../live/messages.js"
 */

const KEPT_LINES = 2000;
const NEAR_END = 40; // pixels
/** @type {Texts | null} */
let newest = null;
/** @type {Texts | null} */
let held = null;

/** Writes the figures, also over those of a refresh. */
function show() {
  write($$("[data-process]"), "process", newest);
  writeHeld(held);
}

new Board({
  pick: (message) => message.total,
  onPoint: (message) => {
    newest = processTexts(message.process);
    held = memoryTexts(message.memory);
    show();
  },
});
document.body.addEventListener("htmx:afterSwap", show);

const log = need("#log", HTMLElement);
const state = need("#log-state", HTMLElement);
const follow = need("#log-follow", HTMLInputElement);
/** @type {string[]} */
let lines = [];

/** @param {LogLines} message */
function add(message) {
  if (message.type !== "log") return;
  lines = message.reset ? message.lines : [...lines, ...message.lines].slice(-KEPT_LINES);
  log.textContent = lines.length ? lines.join("\n") : "The log is empty so far.";
  toEnd();
}

/** Shows the newest lines while a person wants to follow. */
function toEnd() {
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

/** @type {ReconnectingSocket<LogLines>} */
const feed = new ReconnectingSocket(log.dataset.socket ?? "", {
  onMessage: add,
  onClose: () => (state.textContent = "connection lost, reconnecting"),
});
setInterval(() => {
  const text = feed.open ? `${lines.length} lines` : "reconnecting";
  if (state.textContent !== text) state.textContent = text;
}, 1000);
follow.addEventListener("change", toEnd);
log.addEventListener("wheel", () => {
  if (log.scrollTop + log.clientHeight < log.scrollHeight - NEAR_END) follow.checked = false;
});
