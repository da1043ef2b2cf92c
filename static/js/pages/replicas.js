// The number of replicas of an environment over time, with marks for what changed it.

import { need } from "../core/dom.js";
import { Timeline } from "../charts/timeline.js";

const TABLES = ["dashboard_replicacount", "dashboard_replicaevent"];
const EVERY_MS = 30_000; // the end of the chart is now

const section = need("#replica-charts", HTMLElement);
const charts = new Timeline(section);
charts.follow(section.dataset.readings ?? "");

document.addEventListener("tables", (event) => {
  const tables = event instanceof CustomEvent ? event.detail : null;
  if (!tables || TABLES.some((name) => tables.includes(name))) charts.load();
});
setInterval(() => document.hidden || charts.load(), EVERY_MS);
