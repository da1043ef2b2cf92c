// The page of one server: memory, CPU and GPU, and the log with new lines as they arrive.

import { $$ } from "../core/dom.js";
import { Board } from "../charts/board.js";
import { followLog } from "../live/log.js";
import { keepMemory, processTexts, write, writeHeld } from "../live/figures.js";

/**
 * @import { Texts } from "../live/figures.js"
 */

/** @type {Texts | null} */
let newest = null;
/** @type {Texts | null} */
let held = null;

/** Writes the figures, also over the figures of a refreshed region. */
function show() {
  write($$("[data-process]"), "process", newest);
  writeHeld(held);
}

new Board({
  pick: (message) => message.total,
  onPoint: (message) => {
    newest = processTexts(message.process);
    held = keepMemory(message);
    show();
  },
});
document.body.addEventListener("htmx:afterSwap", show);
if (document.getElementById("log")) followLog();
