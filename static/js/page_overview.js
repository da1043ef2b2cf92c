// The overview: totals and busiest models follow the feed.

import { $$ } from "./dom.js";
import { Board } from "./charts.js";
import { rememberModels, texts, write, writeModels } from "./numbers.js";

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
