// Requests to the dashboard: JSON both ways, the CSRF token, and failures as sentences that can be shown.

/**
 * @typedef {object} RequestOptions
 * @property {string} [method] GET unless it is said
 * @property {unknown} [json] what is sent as JSON
 * @property {BodyInit} [body] what is sent as it is, where `json` is not given
 * @property {Record<string, string>} [headers]
 * @property {AbortSignal} [signal]
 */

/** A request that came to nothing; its message can be shown to a person. */
export class RequestError extends Error {
  /**
   * @param {string} message
   * @param {number} status the HTTP status; 0 where the dashboard did not answer at all
   * @param {unknown} body the answer's JSON; null where it had none
   */
  constructor(message, status, body) {
    super(message);
    this.status = status;
    this.body = body;
  }

  /** Whether the dashboard did not answer at all. */
  get offline() {
    return this.status === 0;
  }
}

/** Returns the token that Django asks for with every request that changes something. */
export function csrfToken() {
  return document.body.dataset.csrf ?? "";
}

/**
 * Returns what a failed answer says of itself, in one sentence.
 * @param {number} status
 * @param {unknown} body the answer's JSON; null where it had none
 * @returns {string}
 */
export function sentence(status, body) {
  const said = body instanceof Object ? /** @type {Record<string, unknown>} */ (body) : {};
  const inner = said.error instanceof Object ? /** @type {Record<string, unknown>} */ (said.error).message : undefined;
  const text = inner ?? said.error ?? said.detail ?? said.message;
  if (typeof text === "string") return text;
  if (status === 403) return "Your session has ended or lacks the permission. Reload the page and sign in.";
  return `The dashboard answered ${status}. Try again, and look at the server's log if it stays.`;
}

/**
 * Asks the dashboard and returns the answer's JSON, null for an answer without content (204).
 * The caller says of which type it is. Throws a RequestError; what `signal` aborts throws an AbortError.
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
    const said = await response.json().catch(() => null);
    throw new RequestError(sentence(response.status, said), response.status, said);
  }
  return response.status === 204 ? null : response.json();
}

/**
 * Returns what went wrong as a sentence to be shown.
 * @param {unknown} problem
 */
export function sentenceOf(problem) {
  const text = problem instanceof Error ? problem.message : String(problem);
  return text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
}
