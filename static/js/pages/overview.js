// The overview: totals and busiest models follow the live feed.

import { $$ } from "../core/dom.js";
import { Board } from "../charts/board.js";
import { rememberModels, texts, write, writeModels } from "../live/figures.js";

/** Writes the figures, also over the figures of a refreshed region. */
function show() {
  write($$("[data-total]"), "total", texts(""));
  writeModels();
}

new Board({
  pick: (message) => message.total,
  onPoint: (message) => {
    rememberModels(message);
    show();
  },
});
document.body.addEventListener("htmx:afterSwap", show);
