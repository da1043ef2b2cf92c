// The page of a running job, which refreshes itself: scrolls the log to its end, and reloads the page when the job has ended.

import { $, $$ } from "../core/dom.js";

const region = $("#job");

/** Shows the end of each log. */
function keepAtEnd() {
  for (const log of $$("[data-follow]")) log.scrollTop = log.scrollHeight;
}

/** Returns whether the job has not ended yet. */
function goesOn() {
  const state = region && $("[data-state]", region)?.dataset.state;
  return state === "queued" || state === "running";
}

document.body.addEventListener("htmx:afterSwap", () => {
  keepAtEnd();
  if (!goesOn()) location.reload();
});
keepAtEnd();
