// Sends files in chunks. Each chunk begins after the bytes that the server has, so that an interrupted transfer can resume.

import { RequestError, request } from "../core/request.js";

/**
 * @typedef {"sending" | "waiting" | "paused" | "done" | "failed"} TransferState "waiting" means for the connection
 */

/**
 * A file of an upload.
 * @typedef {object} TransferRow
 * @property {number} number the number that the server gave to the file
 * @property {string} path
 * @property {number} size bytes
 * @property {number} received bytes that the server has
 * @property {Blob | undefined} file undefined only if all of it was received before
 */

const CHUNK = 4 * 1024 * 1024;
const SPEED_WINDOW_MS = 5000;
const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 8000;

export class Transfer {
  /** @type {TransferState} */
  state = "sending";
  /** @type {{ at: number, bytes: number }[]} */
  #marks = [];
  #tries = 0;
  #abort = new AbortController();
  #wake = () => {};

  /**
   * @param {string} address the address of the upload
   * @param {TransferRow[]} rows
   * @param {(transfer: Transfer) => void} onChange called after each chunk and each change of state
   */
  constructor(address, rows, onChange) {
    this.address = address;
    this.rows = rows;
    this.onChange = onChange;
    addEventListener("online", () => this.#wake());
  }

  /** All bytes of all files. */
  get total() {
    return this.rows.reduce((sum, row) => sum + row.size, 0);
  }

  /** The bytes that the server has. */
  get received() {
    return this.rows.reduce((sum, row) => sum + row.received, 0);
  }

  /**
   * Bytes a second over the last few seconds; null before the speed can be measured.
   * @returns {number | null}
   */
  get speed() {
    const [first, last] = [this.#marks[0], this.#marks.at(-1)];
    if (!last || first === last) return null;
    return ((last.bytes - first.bytes) / Math.max(last.at - first.at, 1)) * 1000;
  }

  /** Stops immediately, and aborts the chunk that is being sent. */
  pause() {
    if (this.state !== "sending" && this.state !== "waiting") return;
    this.state = "paused";
    this.#abort.abort();
    this.onChange(this);
  }

  /** Resumes after a pause. */
  resume() {
    if (this.state !== "paused") return;
    this.state = "sending";
    this.#marks = [];
    this.#wake();
    this.onChange(this);
  }

  /** Sends until the server has every byte. Throws errors that a retry cannot solve. */
  async run() {
    for (const row of this.rows) {
      while (row.received < row.size) {
        if (this.state === "paused") await this.#sleep();
        else await this.#step(row);
      }
    }
    this.state = "done";
    this.onChange(this);
  }

  /** @param {TransferRow} row */
  async #step(row) {
    try {
      await this.#send(row);
      this.#tries = 0;
      if (this.state === "waiting") this.state = "sending";
    } catch (error) {
      if (error instanceof Error && error.name === "AbortError") return;
      if (!(error instanceof RequestError)) throw error;
      if (error.status === 409) row.received = receivedOf(error.body) ?? (await this.#ask(row));
      else if (error.offline || error.status >= 500) await this.#wait();
      else throw error;
    }
    this.onChange(this);
  }

  /** @param {TransferRow} row */
  async #send(row) {
    this.#abort = new AbortController(); // created before the read of the chunk, so that a pause aborts the read, too
    if (!row.file) throw new Error(`${row.path} is not among the files that were chosen.`);
    const bytes = await row.file.slice(row.received, row.received + CHUNK).arrayBuffer();
    /** @type {Record<string, string>} */
    const headers = { "Content-Type": "application/octet-stream" };
    // Browsers have crypto.subtle only on pages from localhost or over HTTPS.
    if (crypto.subtle) headers["X-Sha256"] = hex(await crypto.subtle.digest("SHA-256", bytes));
    const url = `${this.address}/files/${row.number}?offset=${row.received}`;
    const answer = await request(url, { method: "PUT", body: bytes, headers, signal: this.#abort.signal });
    row.received = receivedOf(answer) ?? row.received + bytes.byteLength;
    this.#mark();
  }

  /**
   * Asks the server for the number of bytes that it has of a file.
   * @param {TransferRow} row
   */
  async #ask(row) {
    const upload = /** @type {{ files: { number: number, received: number }[] }} */ (await request(this.address));
    return upload.files.find(({ number }) => number === row.number)?.received ?? 0;
  }

  #mark() {
    const at = performance.now();
    this.#marks.push({ at, bytes: this.received });
    while (this.#marks.length > 2 && at - this.#marks[0].at > SPEED_WINDOW_MS) this.#marks.shift();
  }

  /** Waits before the next attempt, twice as long after each attempt. */
  async #wait() {
    this.state = "waiting";
    this.#marks = [];
    this.onChange(this);
    this.#tries += 1;
    await this.#sleep(Math.min(FIRST_WAIT_MS * 2 ** this.#tries, LONGEST_WAIT_MS));
  }

  /**
   * Waits until the time is over, `resume` is called, or the connection is back.
   * @param {number} [most] milliseconds
   * @returns {Promise<void>}
   */
  #sleep(most) {
    return new Promise((wake) => {
      this.#wake = wake;
      if (most !== undefined) setTimeout(wake, most);
    });
  }
}

/**
 * Returns the number of bytes of a file that the server has, from its answer.
 * @param {unknown} answer
 * @returns {number | undefined}
 */
function receivedOf(answer) {
  const { received } = /** @type {{ received?: number }} */ (answer ?? {});
  return received;
}

/** @param {ArrayBuffer} buffer */
function hex(buffer) {
  return [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
