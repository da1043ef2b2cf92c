// A job as it goes: the page refreshes itself; this keeps the log at its end and stops when the job has ended.

import { $, $$ } from "./dom.js";

const region = $("#job");

function keepAtEnd() {
  for (const log of $$("[data-follow]")) log.scrollTop = log.scrollHeight;
}

document.body.addEventListener("htmx:afterSwap", () => {
  keepAtEnd();
  const over = !["queued", "running"].includes($("[data-state]", region)?.dataset.state);
  if (over) location.reload();
});
keepAtEnd();
