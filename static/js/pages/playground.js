// The playground: inputs from the signature, the request through the dashboard, the answer, the same as code.

import { $$, data, need } from "../core/dom.js";
import { latency, size } from "../core/format.js";
import { csrfToken, sentence } from "../core/request.js";
import { answerView, failureView } from "../playground/answer.js";
import { TensorInput } from "../playground/input.js";
import { snippet } from "../playground/snippets.js";
import { TIMING, encode, readable } from "../playground/wire.js";

/**
 * @import { SnippetKind } from "../playground/snippets.js"
 * @import { TensorSpec } from "../playground/tensors.js"
 * @import { EncodedRequest, Parameters, Tensor } from "../playground/wire.js"
 */

/**
 * What the page begins with (dashboard/playground/pages.py).
 * @typedef {object} PlayData
 * @property {string} model
 * @property {number | null} version the one that is tried
 * @property {number[]} live the versions that are served
 * @property {{ inputs: TensorSpec[], outputs: TensorSpec[] }} signature
 * @property {string} infer the address that a request goes to
 * @property {{ http: string, grpc: string }} server
 * @property {boolean} token whether the server asks for one
 * @property {Record<string, string[]>} labels output -> names of its classes
 * @property {boolean} decoupled
 * @property {boolean} sequence whether the model keeps state between requests
 */

/** @type {Record<SnippetKind, string>} */
const NEEDS = {
  curl: "",
  http: "Needs: pip install 'tritonclient[http]'",
  grpc: "Needs: pip install 'tritonclient[grpc]'",
};

/**
 * Runs the playground of a model.
 * @param {PlayData} play
 */
function start(play) {
  /** @type {SnippetKind} */
  let kind = play.decoupled ? "grpc" : "curl";
  let ready = false;
  const inputs = play.signature.inputs.map((tensor) => new TensorInput(tensor, () => ready && showSnippet()));

  /**
   * Returns what the inputs were given; null where one of them was given nothing that it can be.
   * @param {boolean} loud whether that one says so
   */
  async function gather(loud) {
    /** @type {Tensor[]} */
    const rows = [];
    for (const input of inputs) {
      try {
        rows.push({ name: input.tensor.name, datatype: input.tensor.datatype, ...(await input.read()) });
      } catch (error) {
        if (loud) input.fail(error instanceof Error ? error.message : String(error));
        return null;
      }
    }
    return rows;
  }

  /**
   * Returns which sequence the request belongs to, for a model that keeps state between requests; nothing for any other.
   * @returns {Parameters}
   */
  function sequence() {
    if (!play.sequence) return {};
    const id = need("#sequence-id", HTMLInputElement).value.trim();
    return {
      sequence_id: /^\d+$/.test(id) ? Number(id) : id,
      sequence_start: need("#sequence-start", HTMLInputElement).checked,
      sequence_end: need("#sequence-end", HTMLInputElement).checked,
    };
  }

  async function showSnippet() {
    const rows = await gather(false);
    const code = need("#snippet", HTMLElement);
    const hint = need("#snippet-hint", HTMLElement);
    if (!rows) {
      code.textContent = "";
      hint.textContent = "Fill the inputs; the code for this request appears here.";
      return;
    }
    const outputs = play.signature.outputs.map(({ name }) => name);
    // The version is named only where it is not what the server would choose by itself.
    const version = play.version === Math.max(...play.live) ? null : play.version;
    code.textContent = snippet(kind, { ...play, version, inputs: rows, outputs, parameters: sequence() });
    const token = play.token ? "Put a token with the right to infer into SLIPWAY_TOKEN." : "";
    hint.textContent = [NEEDS[kind], token].filter(Boolean).join(" ");
  }

  async function send() {
    const rows = await gather(true);
    if (!rows) return;
    const encoded = encode(rows, { [TIMING]: true, ...sequence() });
    const button = need("#play-send", HTMLButtonElement);
    const status = need("#play-status", HTMLElement);
    button.disabled = true;
    status.textContent = "waiting for the answer";
    need("#sent", HTMLElement).textContent = sentText(play.infer, encoded);
    await ask(encoded);
    button.disabled = false;
    status.textContent = "";
  }

  /** @param {EncodedRequest} encoded */
  async function ask({ content, headers }) {
    const own = { Accept: "application/json", "X-CSRFToken": csrfToken() };
    const begin = performance.now();
    try {
      const response = await fetch(play.infer, { method: "POST", body: content, headers: { ...headers, ...own } });
      await show(response, performance.now() - begin);
    } catch {
      need("#answer", HTMLElement).replaceChildren(...failureView("The dashboard does not answer. Try again in a moment."));
      need("#answer-time", HTMLElement).textContent = "";
    }
  }

  /**
   * @param {Response} response
   * @param {number} took milliseconds
   */
  async function show(response, took) {
    const [view, received] = [need("#answer", HTMLElement), need("#received", HTMLElement)];
    need("#answer-time", HTMLElement).textContent = `${response.status} · ${latency(took)}`;
    const text = await response.text();
    if (!response.ok) {
      received.textContent = text;
      view.replaceChildren(...failureView(sentence(response.status, jsonOf(text)), response.status));
      return;
    }
    const answer = JSON.parse(text);
    received.textContent = readable(answer);
    view.replaceChildren(...answerView(answer, took, play.labels));
    if (play.sequence) need("#sequence-start", HTMLInputElement).checked = false;
    showSnippet();
  }

  need("#play-inputs", HTMLElement).replaceChildren(...inputs.map(({ element }) => element));
  ready = true;
  if (play.sequence) {
    need("#sequence-id", HTMLInputElement).value = String(Math.floor(Math.random() * 1e9) + 1);
    need("#play-sequence", HTMLElement).addEventListener("input", showSnippet);
  }
  showSnippet();
  need("#play-form", HTMLFormElement).addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  const versions = need("#play-version", HTMLSelectElement);
  versions.addEventListener("change", () => {
    const url = new URL(location.href);
    url.searchParams.set("version", versions.value);
    location.href = url.href;
  });
  const buttons = $$("[data-snippet]");
  for (const button of buttons) {
    button.addEventListener("click", () => {
      kind = /** @type {SnippetKind} */ (button.dataset.snippet);
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      showSnippet();
    });
  }
}

/**
 * Writes a request for reading.
 * @param {string} address
 * @param {EncodedRequest} request
 */
function sentText(address, { json, headers, binaryLength }) {
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  const binary = binaryLength ? `\n\n+ ${size(binaryLength)} of binary data` : "";
  return `POST ${address}\n${head.join("\n")}\n\n${readable(json)}${binary}`;
}

/**
 * Returns a text's JSON; null where it is none.
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

const play = /** @type {PlayData | null} */ (data("play-data"));
if (play) start(play);
