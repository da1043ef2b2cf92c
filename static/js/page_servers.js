// The list of servers: what each process uses now.

import { $, $$ } from "./dom.js";
import { Live, showFreshness } from "./live.js";
import { processTexts, write } from "./numbers.js";

const newest = new Map();

function show() {
  for (const [name, values] of newest) write($$(`[data-server="${CSS.escape(name)}"] [data-process]`), "process", values);
}

new Live("/ws/live/", {
  onPoint: (message) => {
    newest.set(message.server, processTexts(message.process));
    show();
  },
  onFresh: (fresh, age) => showFreshness($("#freshness"), $("#main"), fresh, age),
});
document.body.addEventListener("htmx:afterSwap", show);
