// Both arms of a rollout over time, with its steps, and the time that is left in the current step.

import { $, $$ } from "../core/dom.js";
import { Timeline } from "../charts/timeline.js";
import { duration } from "../core/format.js";

/** Writes the time that is left until each moment that the page names. */
function countDown() {
  for (const element of $$("[data-until]")) {
    const left = Math.max(0, (Date.parse(element.dataset.until ?? "") - Date.now()) / 1000);
    if (element instanceof HTMLProgressElement) element.value = Math.max(0, element.max - left);
    else element.textContent = left >= 1 ? duration(Math.ceil(left)) : "a moment";
  }
}

const section = $("#arms-charts");
const charts = section && new Timeline(section);

/** Shows the charts of the page's rollout, if it has one. */
function follow() {
  charts?.follow($("#rollout")?.dataset.figures ?? "");
  countDown();
}

document.body.addEventListener("htmx:afterSwap", follow);
document.addEventListener("tables", (event) => {
  const tables = event instanceof CustomEvent ? event.detail : null;
  if (!tables || tables.includes("dashboard_rolloutsample") || tables.includes("dashboard_rollout")) charts?.load();
});
setInterval(countDown, 1000);
follow();
