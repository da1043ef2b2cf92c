// The live feed: one WebSocket a page, which comes back by itself and says how old its last word is.

const QUIET_AFTER = 4000;

export class Live {
  /** `onPoint(message)` for each message; `onFresh(fresh, ageMs)` whenever freshness changes and each second while stale. */
  constructor(path, { onPoint, onFresh = () => {} }) {
    this.path = path;
    this.onPoint = onPoint;
    this.onFresh = onFresh;
    this.last = 0;
    this.tries = 0;
    this.opened = Date.now();
    this.connect();
    this.clock = setInterval(() => this.check(), 1000);
    addEventListener("online", () => this.reconnect());
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.reconnect());
    addEventListener("pagehide", () => this.close());
  }

  connect() {
    clearTimeout(this.retry);
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    this.socket = new WebSocket(`${scheme}://${location.host}${this.path}`);
    this.socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      this.tries = 0;
      if (message.type === "lost" || message.type === "error") return;
      this.last = Date.now();
      this.onPoint(message);
      this.onFresh(true, 0);
    };
    this.socket.onclose = () => {
      if (this.closed) return;
      this.tries += 1;
      this.retry = setTimeout(() => this.connect(), Math.min(500 * 2 ** this.tries, 8000));
    };
  }

  reconnect() {
    if (!this.closed && this.socket.readyState === WebSocket.CLOSED) this.connect();
  }

  check() {
    const age = Date.now() - (this.last || this.opened);
    if (age > QUIET_AFTER) this.onFresh(false, this.last ? age : null);
  }

  close() {
    this.closed = true;
    clearInterval(this.clock);
    clearTimeout(this.retry);
    // Closed before it is open, it would be an error in the console.
    if (this.socket.readyState === WebSocket.CONNECTING) this.socket.onopen = () => this.socket.close();
    else this.socket.close();
  }
}

/** Writes freshness into a `.stale-note`: live, or how old the last word is. */
export function showFreshness(note, root, fresh, age) {
  root.classList.toggle("is-stale", !fresh);
  if (!note) return;
  note.dataset.live = String(fresh);
  const text = fresh ? "live" : age === null ? "connecting" : `last update ${Math.round(age / 1000)} s ago, reconnecting`;
  if (note.textContent !== text) note.textContent = text;
}
