// Follows a log in an element of the page: shows the newest lines, optionally filtered by level and words.

import { $, el, need } from "../core/dom.js";
import { ReconnectingSocket } from "./socket.js";

/** @import { LogLines } from "./messages.js" */

const KEPT_LINES = 2000;
const NEAR_END = 40; // pixels
const LEVELS = ["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
const LEVEL = new RegExp(`^\\S+(?: \\S+)? (${LEVELS.join("|")}) `);

/**
 * Returns the level of each line. A line without a level, such as a line of a traceback, has the level of the previous line.
 * @param {string[]} lines
 * @returns {string[]}
 */
export function levelsOf(lines) {
  let level = "";
  return lines.map((line) => (level = LEVEL.exec(line)?.[1] ?? level));
}

/**
 * Returns the lines of at least the level `least` that contain all words, each with its level.
 * @param {string[]} lines
 * @param {string} least the lowest level to show; "" for every level
 * @param {string} words
 * @returns {{ text: string, level: string }[]}
 */
export function chosenLines(lines, least, words) {
  const levels = levelsOf(lines);
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  return lines
    .map((text, index) => ({ text, level: levels[index] }))
    .filter(({ level }) => !least || LEVELS.indexOf(level) >= LEVELS.indexOf(least))
    .filter(({ text }) => wanted.every((word) => text.toLowerCase().includes(word)));
}

/** Follows the log of the page's element `log-card`. */
export function followLog() {
  const log = need("#log", HTMLElement);
  const state = need("#log-state", HTMLElement);
  const follow = need("#log-follow", HTMLInputElement);
  const least = need("#log-level", HTMLSelectElement);
  const words = need("#log-search", HTMLInputElement);
  const process = $("#log-process");
  const path = need("#log-card", HTMLElement).dataset.socket ?? "";
  /** @type {string[]} */
  let lines = [];

  /** Writes the chosen lines, and scrolls to the end if the person has chosen to follow the log. */
  function show() {
    const chosen = chosenLines(lines, least.value, words.value);
    const parts = chosen.map(({ text, level }) => el("span", { class: `log-line ${level.toLowerCase()}` }, `${text}\n`));
    const none = lines.length ? "No line matches the choices above." : "The log is empty so far.";
    log.replaceChildren(...(parts.length ? parts : [none]));
    toEnd();
  }

  function toEnd() {
    if (follow.checked) log.scrollTop = log.scrollHeight;
  }

  /** @param {LogLines} message */
  function take(message) {
    if (message.type !== "log") return;
    lines = message.reset ? message.lines : [...lines, ...message.lines].slice(-KEPT_LINES);
    show();
  }

  /** @returns {ReconnectingSocket<LogLines>} */
  function connect() {
    const query = process instanceof HTMLSelectElement ? `?process=${encodeURIComponent(process.value)}` : "";
    return new ReconnectingSocket(path + query, {
      onMessage: take,
      onClose: () => (state.textContent = "connection lost, reconnecting"),
    });
  }

  let feed = connect();
  process?.addEventListener("change", () => {
    feed.close();
    feed = connect();
  });
  least.addEventListener("change", show);
  words.addEventListener("input", show);
  follow.addEventListener("change", toEnd);
  log.addEventListener("wheel", () => {
    if (log.scrollTop + log.clientHeight < log.scrollHeight - NEAR_END) follow.checked = false;
  });
  setInterval(() => {
    const text = feed.open ? `${lines.length} lines` : "reconnecting";
    if (state.textContent !== text) state.textContent = text;
  }, 1000);
}
