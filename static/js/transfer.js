// Sends files in chunks, each at the offset where the server says it stands: so it goes on after any interruption.

import { request } from "./dom.js";

export const CHUNK = 4 * 1024 * 1024;
const SPEED_WINDOW = 5000;
const LONGEST_WAIT = 8000;

export class Transfer {
  /** `rows`: [{number, path, size, received, file}]. `onChange(transfer)` after each chunk and each change of state. */
  constructor(address, rows, onChange) {
    this.address = address;
    this.rows = rows;
    this.onChange = onChange;
    this.state = "sending";
    this.marks = [];
    addEventListener("online", () => this.wake?.());
  }

  get total() {
    return this.rows.reduce((sum, row) => sum + row.size, 0);
  }

  get received() {
    return this.rows.reduce((sum, row) => sum + row.received, 0);
  }

  /** Bytes a second over the last few seconds; null before it is known. */
  get speed() {
    const [first, last] = [this.marks[0], this.marks.at(-1)];
    return this.marks.length < 2 ? null : ((last.bytes - first.bytes) / Math.max(last.at - first.at, 1)) * 1000;
  }

  pause() {
    if (this.state !== "sending" && this.state !== "waiting") return;
    this.state = "paused";
    this.abort?.abort();
    this.onChange(this);
  }

  resume() {
    if (this.state !== "paused") return;
    this.state = "sending";
    this.marks = [];
    this.wake?.();
    this.onChange(this);
  }

  /** Until every byte is there. Throws for what waiting does not mend. */
  async run() {
    for (const row of this.rows) {
      while (row.received < row.size) {
        if (this.state === "paused") await new Promise((wake) => (this.wake = wake));
        else await this.step(row);
      }
    }
    this.state = "done";
    this.onChange(this);
  }

  async step(row) {
    try {
      await this.send(row);
      this.tries = 0;
      if (this.state === "waiting") this.state = "sending";
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === 409) row.received = error.body?.received ?? (await this.ask(row));
      else if (error.offline || error.status >= 500) await this.wait(error);
      else throw error;
    }
    this.onChange(this);
  }

  async send(row) {
    this.abort = new AbortController(); // before the chunk is read: a pause meanwhile stops it too
    const chunk = row.file.slice(row.received, row.received + CHUNK);
    const bytes = await chunk.arrayBuffer();
    const headers = { "Content-Type": "application/octet-stream" };
    if (crypto.subtle) headers["X-Sha256"] = hex(await crypto.subtle.digest("SHA-256", bytes));
    const answer = await request(`${this.address}/files/${row.number}?offset=${row.received}`, { method: "PUT", body: bytes, headers, signal: this.abort.signal });
    row.received = answer?.received ?? row.received + bytes.byteLength;
    this.mark();
  }

  async ask(row) {
    const upload = await request(this.address);
    return upload.files.find((file) => file.number === row.number).received;
  }

  mark() {
    const at = performance.now();
    this.marks.push({ at, bytes: this.received });
    while (this.marks.length > 2 && at - this.marks[0].at > SPEED_WINDOW) this.marks.shift();
  }

  async wait(error) {
    this.state = "waiting";
    this.reason = error.message;
    this.marks = [];
    this.onChange(this);
    this.tries = (this.tries ?? 0) + 1;
    const pause = Math.min(500 * 2 ** this.tries, LONGEST_WAIT);
    await new Promise((wake) => {
      this.wake = wake;
      setTimeout(wake, pause);
    });
  }
}

function hex(buffer) {
  return [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
