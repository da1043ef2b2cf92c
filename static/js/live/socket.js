// A WebSocket that reconnects automatically and reports the age of its newest message.

import { $, need } from "../core/dom.js";

const QUIET_AFTER_MS = 4000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;
const LISTED = 3;

/**
 * Returns the wait before the next attempt to connect.
 * @param {number} tries failed attempts, at least 1
 * @returns {number} milliseconds
 */
export function retryDelay(tries) {
  return Math.min(FIRST_WAIT_MS * 2 ** tries, LONGEST_WAIT_MS);
}

/**
 * Returns a text about the freshness of a page's numbers.
 * @param {boolean} fresh
 * @param {number | null} age milliseconds since the newest message; null before the first
 * @param {string[]} [missing] the servers that are not in the numbers
 * @returns {string}
 */
export function freshnessText(fresh, age, missing = []) {
  if (fresh) return missing.length ? `up to date, without ${listed(missing)}` : "up to date";
  return age === null ? "connecting" : `last update ${Math.round(age / 1000)} s ago, reconnecting`;
}

/**
 * Returns names in words: at most LISTED of them.
 * @param {string[]} names
 */
function listed(names) {
  const more = names.length - LISTED;
  return names.slice(0, LISTED).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

/**
 * Shows the freshness of the page's numbers in a note, and marks the numbers while they are old.
 * @param {boolean} fresh
 * @param {number | null} age milliseconds since the newest message; null before the first
 * @param {string[]} [missing] the servers that are not in the numbers
 */
export function showFreshness(fresh, age, missing = []) {
  need("#main", HTMLElement).classList.toggle("is-stale", !fresh);
  const note = $("#freshness");
  if (!note) return;
  note.dataset.live = String(fresh && !missing.length);
  const text = freshnessText(fresh, age, missing);
  if (note.textContent !== text) note.textContent = text;
}

/**
 * @template Message
 * @typedef {object} SocketHandlers
 * @property {(message: Message) => void} onMessage called for each message except Trouble
 * @property {(fresh: boolean, age: number | null, missing?: string[]) => void} [onFresh] called with each message, and each
 *   second without a message; age: milliseconds since the newest message, null before the first message; missing: the servers
 *   that are not in the message
 * @property {() => void} [onClose] called whenever the connection ends
 */

/** @template {{ type: string }} Message */
export class ReconnectingSocket {
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #retry;
  #tries = 0;
  #last = 0;
  #opened = Date.now();
  #closed = false;

  /**
   * @param {string} path the path on the same host, with its query
   * @param {SocketHandlers<Message>} handlers
   */
  constructor(path, { onMessage, onFresh = () => {}, onClose = () => {} }) {
    this.path = path;
    this.onMessage = onMessage;
    this.onFresh = onFresh;
    this.onClose = onClose;
    this.socket = this.#connect();
    this.clock = setInterval(() => this.#check(), 1000);
    addEventListener("online", () => this.#reconnect());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.#reconnect());
    addEventListener("pagehide", () => this.close());
  }

  /** Whether the connection is open, so that messages can arrive. */
  get open() {
    return this.socket.readyState === WebSocket.OPEN;
  }

  /** Closes the connection for good. */
  close() {
    this.#closed = true;
    clearInterval(this.clock);
    clearTimeout(this.#retry);
    // Closing a connection before it is open would log an error in the console.
    if (this.socket.readyState === WebSocket.CONNECTING) this.socket.onopen = () => this.socket.close();
    else this.socket.close();
  }

  #connect() {
    clearTimeout(this.#retry);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}${this.path}`);
    socket.onmessage = (event) => this.#take(JSON.parse(event.data));
    socket.onclose = () => {
      if (this.#closed) return;
      this.onClose();
      this.#tries += 1;
      this.#retry = setTimeout(() => (this.socket = this.#connect()), retryDelay(this.#tries));
    };
    return socket;
  }

  /** @param {Message | import("./messages.js").Trouble} message */
  #take(message) {
    this.#tries = 0;
    if (message.type === "lost" || message.type === "error") return;
    this.#last = Date.now();
    this.onMessage(/** @type {Message} */ (message));
    this.onFresh(true, 0, "missing" in message ? /** @type {string[]} */ (message.missing) : []);
  }

  #reconnect() {
    if (!this.#closed && this.socket.readyState === WebSocket.CLOSED) this.socket = this.#connect();
  }

  #check() {
    const age = Date.now() - (this.#last || this.#opened);
    if (age > QUIET_AFTER_MS) this.onFresh(false, this.#last ? age : null);
  }
}
