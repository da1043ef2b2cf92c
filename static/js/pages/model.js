// A model's charts and the figures above them.

import { $$, data } from "../core/dom.js";
import { Board } from "../charts/board.js";
import { memoryTexts, remember, texts, write } from "../live/figures.js";

const { model } = /** @type {import("../charts/board.js").BoardConfig} */ (data("charts-config"));
/** @type {string | null | undefined} */
let memory = null;

/** Writes the figures, also over the figures of a refreshed region. */
function show() {
  write($$("[data-now]"), "now", { ...texts(model), memory });
}

new Board({
  pick: (message) => message.models[model],
  onPoint: (message) => {
    remember(model, message.models[model]);
    memory = memoryTexts(message.memory, message.floors)[model];
    show();
  },
});
document.body.addEventListener("htmx:afterSwap", show);
