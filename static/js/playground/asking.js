// One request to one version through the dashboard: sends it, measures its time, and reads the answer.

import { csrfToken, messageOf, request, sentence, linesOf } from "../core/request.js";
import { decode, unkept } from "./wire.js";

/**
 * @import { Answer, EncodedRequest, Output } from "./wire.js"
 *
 * @typedef {object} Asked
 * @property {string} version the version in the request; "" for the server's choice
 * @property {number} took milliseconds from sending the request until the answer, in the browser
 * @property {number} status the HTTP status; 0 without an answer
 * @property {Answer | null} answer null if the server refused the request
 * @property {string} refusal the reason as a sentence; "" if there is an answer
 *
 * @typedef {{ name: string, state: string, reason: string, desired_state: string, servers: number, serving_servers: number }} ModelSummary a model in the REST API
 */

const POLL_MS = 1000;
const CHANGING = ["loading", "unloading"];

/**
 * Sends a request.
 * @param {string} address
 * @param {string} version
 * @param {EncodedRequest} encoded
 * @returns {Promise<Asked>}
 */
export async function ask(address, version, { content, headers }) {
  const own = { Accept: "application/json", "X-CSRFToken": csrfToken() };
  const begin = performance.now();
  const asked = { version, took: 0, status: 0, answer: null, refusal: "" };
  try {
    const response = await fetch(address, { method: "POST", body: content, headers: { ...headers, ...own } });
    const body = new Uint8Array(await response.arrayBuffer());
    const came = { ...asked, took: performance.now() - begin, status: response.status };
    if (!response.ok) return { ...came, refusal: sentence(response.status, jsonOf(new TextDecoder().decode(body))) };
    return { ...came, answer: decode(body, response.headers.get("Inference-Header-Content-Length")) };
  } catch (error) {
    if (error instanceof TypeError) return { ...asked, refusal: "The dashboard does not answer. Try again in a moment." };
    return { ...asked, refusal: `The answer cannot be read: ${messageOf(error)}` };
  }
}

/**
 * Sends a request to a decoupled model, and passes on each response as it arrives.
 * @param {string} address
 * @param {string} version
 * @param {object} json the request in the form of an example
 * @param {AbortSignal} signal cancels the request
 * @param {(part: Asked) => void} onResponse
 * @returns {Promise<Asked>} the result at the end of the stream: it has no answer, and a refusal if the request failed
 */
export async function askStream(address, version, json, signal, onResponse) {
  const headers = { Accept: "application/x-ndjson", "Content-Type": "application/json", "X-CSRFToken": csrfToken() };
  const begin = performance.now();
  /** @type {Asked} */
  const asked = { version, took: 0, status: 0, answer: null, refusal: "" };
  const now = () => ({ ...asked, took: performance.now() - begin });
  try {
    const response = await fetch(address, { method: "POST", body: JSON.stringify(json), headers, signal });
    asked.status = response.status;
    if (!response.ok || !response.body) return { ...now(), refusal: sentence(response.status, jsonOf(await response.text())) };
    for await (const line of linesOf(response.body)) {
      const { error, ...part } = JSON.parse(line);
      if (error) return { ...now(), refusal: error };
      onResponse({ ...now(), answer: { ...part, outputs: part.outputs.map((/** @type {Output} */ row) => ({ ...row, data: unkept(row) })) } });
    }
    return now();
  } catch (error) {
    if (signal.aborted) return { ...now(), refusal: "Stopped; the request is cancelled." };
    if (error instanceof TypeError) return { ...now(), refusal: "The dashboard does not answer, or the connection broke. Try again in a moment." };
    return { ...now(), refusal: `The answer cannot be read: ${messageOf(error)}` };
  }
}

/**
 * Waits while a model is being loaded, until the first of several servers serves it. Returns its summary after that, or null if
 * the summary cannot be read.
 * @param {string} address the address of the model's summary
 * @param {(summary: ModelSummary) => void} [onWait] called with each summary during the wait
 * @returns {Promise<ModelSummary | null>}
 */
export async function waitUntilLoaded(address, onWait) {
  for (;;) {
    const summary = /** @type {ModelSummary | null} */ (await request(address).catch(() => null));
    if (!summary || !CHANGING.includes(summary.state) || servesSomewhere(summary)) return summary;
    onWait?.(summary);
    await new Promise((done) => setTimeout(done, POLL_MS));
  }
}

/**
 * Returns whether some of several servers serve a model, and not all.
 * @param {ModelSummary} summary
 */
function servesSomewhere(summary) {
  return summary.serving_servers > 0 && summary.serving_servers < summary.servers;
}

/**
 * Returns the value of a JSON text; null if the text is not JSON.
 * @param {string} text
 * @returns {unknown}
 */
function jsonOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
