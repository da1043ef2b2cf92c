// One server: memory, CPU and GPU, and the log that follows.

import { $, $$ } from "./dom.js";
import { Board } from "./charts.js";
import { Live } from "./live.js";
import { memoryTexts, processTexts, write, writeHeld } from "./numbers.js";

const KEPT_LINES = 2000;
let newest = null;
let held = null;
const show = () => {
  write($$("[data-process]"), "process", newest);
  writeHeld(held);
};

new Board({
  pick: (message) => message.total,
  onPoint: (message) => {
    newest = processTexts(message.process);
    held = memoryTexts(message.memory);
    show();
  },
});
document.body.addEventListener("htmx:afterSwap", show);

const log = $("#log");
const state = $("#log-state");
const follow = $("#log-follow");
let lines = [];

function add(message) {
  if (message.type !== "log") return;
  lines = message.reset ? message.lines : [...lines, ...message.lines].slice(-KEPT_LINES);
  log.textContent = lines.length ? lines.join("\n") : "The log is empty so far.";
  if (follow.checked) log.scrollTop = log.scrollHeight;
}

const feed = new Live(log.dataset.socket, { onPoint: add });
feed.socket.addEventListener("close", () => (state.textContent = "connection lost, reconnecting"));
setInterval(() => {
  const open = feed.socket.readyState === WebSocket.OPEN;
  const text = open ? `${lines.length} lines` : "reconnecting";
  if (state.textContent !== text) state.textContent = text;
}, 1000);
follow.addEventListener("change", () => {
  if (follow.checked) log.scrollTop = log.scrollHeight;
});
log.addEventListener("wheel", () => {
  if (log.scrollTop + log.clientHeight < log.scrollHeight - 40) follow.checked = false;
});
