// Requests to the dashboard: JSON in both directions, the CSRF token, and failures as sentences for people.

/**
 * @typedef {object} RequestOptions
 * @property {string} [method] GET by default
 * @property {unknown} [json] a body to send as JSON
 * @property {BodyInit} [body] a body to send unchanged, without `json`
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 */

/** A failed request; its message is for people. */
export class RequestError extends Error {
  /**
   * @param {string} message
   * @param {number} status the HTTP status; 0 if the dashboard did not answer
   * @param {unknown} body the answer's JSON; null if there is none
   */
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.body = body;
  }

  /** Whether the dashboard did not answer. */
  get offline() {
    return this.status === 0;
  }
}

/** Returns the token that Django requires for every request that changes something. */
export function csrfToken() {
  return document.body.dataset.csrf ?? "";
}

/**
 * Returns the message of a failed answer, in one sentence.
 * @param {number} status
 * @param {unknown} body the answer's JSON; null if there is none
 * @returns {string}
 */
export function sentence(status, body) {
  const fields = body instanceof Object ? /** @type {Record<string, unknown>} */ (body) : {};
  const inner = fields.error instanceof Object ? /** @type {Record<string, unknown>} */ (fields.error).message : undefined;
  const text = inner ?? fields.error ?? fields.detail ?? fields.message;
  if (typeof text === "string") return text;
  if (status === 403) return "Your session has ended or lacks the permission. Reload the page and sign in.";
  return `The dashboard answered ${status}. Try again, and look at the server's log if it stays.`;
}

/**
 * Sends a request to the dashboard and returns the answer's JSON, null for an answer without content (204).
 * The caller casts it to its type. Throws a RequestError, or an AbortError if `signal` aborts the request.
 * @param {string} url
 * @param {RequestOptions} [options]
 * @returns {Promise<unknown>}
 */
export async function request(url, { method = "GET", json, body, headers = {}, signal } = {}) {
  /** @type {Record<string, string>} */
  const sent = { Accept: "application/json", ...headers };
  if (method !== "GET") sent["X-CSRFToken"] = csrfToken();
  if (json !== undefined) sent["Content-Type"] = "application/json";
  const content = json === undefined ? body : JSON.stringify(json);
  let response;
  try {
    response = await fetch(url, { method, headers: sent, body: content, signal, credentials: "same-origin" });
  } catch (error) {
    if (error instanceof Error && error.name === "AbortError") throw error;
    throw new RequestError("The dashboard does not answer. It is tried again by itself.", 0, null);
  }
  if (!response.ok) {
    const answer = await response.json().catch(() => null);
    throw new RequestError(sentence(response.status, answer), response.status, answer);
  }
  return response.status === 204 ? null : response.json();
}

/**
 * Yields the lines of a body as they arrive.
 * @param {ReadableStream<Uint8Array<ArrayBuffer>>} body
 */
export async function* linesOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop() ?? "";
    yield* lines;
    if (done) break;
  }
  if (rest) yield rest;
}

/**
 * Posts nothing, and yields the lines of the answer as they arrive. Throws a RequestError, or an AbortError if `signal` aborts it.
 * @param {string} url
 * @param {AbortSignal} signal
 */
export async function* linesFrom(url, signal) {
  const headers = { Accept: "application/x-ndjson", "X-CSRFToken": csrfToken() };
  const response = await fetch(url, { method: "POST", headers, signal, credentials: "same-origin" }).catch((error) => {
    if (signal.aborted) throw error;
    throw new RequestError("The dashboard does not answer. Try again in a moment.", 0, null);
  });
  if (!response.ok || !response.body) {
    const answer = await response.json().catch(() => null);
    throw new RequestError(sentence(response.status, answer), response.status, answer);
  }
  yield* linesOf(response.body);
}

/**
 * Returns the message of anything that was thrown.
 * @param {unknown} problem
 */
export function messageOf(problem) {
  return problem instanceof Error ? problem.message : String(problem);
}

/**
 * Returns the message of anything that was thrown, as a sentence.
 * @param {unknown} problem
 */
export function sentenceOf(problem) {
  const text = messageOf(problem);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
