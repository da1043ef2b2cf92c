// The playground: inputs from the signature, a request through the dashboard to one or two versions, the answer, the same request
// as code, and examples of requests.

import { $, $$, data, el, icon, need, saveFile } from "../core/dom.js";
import { latency, size } from "../core/format.js";
import { messageOf, request, sentenceOf } from "../core/request.js";
import { followLog } from "../live/log.js";
import { answerView, failureView, serverTime } from "../playground/answer.js";
import { ask, askStream, waitUntilLoaded } from "../playground/asking.js";
import { keepNames, keptNames } from "../playground/class_names.js";
import { comparisonView, versionName } from "../playground/comparison.js";
import { fitsJson } from "../playground/datatypes.js";
import { Examples } from "../playground/examples.js";
import { HandlerInput } from "../playground/handler_input.js";
import { TensorInput } from "../playground/input.js";
import { dataFiles, needs, snippet } from "../playground/snippets.js";
import { BINARY, TIMING, encode, kept, readable, unkept } from "../playground/wire.js";

/**
 * @import { Asked } from "../playground/asking.js"
 * @import { SnippetKind, SnippetRequest } from "../playground/snippets.js"
 * @import { TensorSpec } from "../playground/tensors.js"
 * @import { EncodedRequest, Parameters, Tensor } from "../playground/wire.js"
 */

/**
 * The page's configuration (dashboard/playground/pages.py).
 * @typedef {object} PlayData
 * @property {string} model
 * @property {string} state the state of the model
 * @property {{ inputs: TensorSpec[], outputs: TensorSpec[] }} signature
 * @property {number} max_batch the most rows of one request; 0 if the model takes no batches
 * @property {boolean} own_signatures whether another version may have another signature
 * @property {{ infer: string, version: string, model: string, examples: string, golden_checks: string, traffic: string, class_names: string }} addresses the addresses of the REST API; VERSION in the second is replaced
 * @property {{ http: string, grpc: string, torchserve?: string }} server the addresses of the server; "" for a protocol that it does not serve
 * @property {Record<string, { http: string, grpc: string }>} servers every server -> its addresses
 * @property {string} local the server that gets requests if no other one is chosen
 * @property {boolean} handler whether a handler of TorchServe answers
 * @property {Record<string, string>} archive_versions TorchServe's own version of each version that is an archive
 * @property {string} log the page of the model's log
 * @property {boolean} token whether the server requires a token
 * @property {Record<string, string[]>} labels output -> names of its classes
 * @property {boolean} decoupled
 * @property {boolean} sequence whether the model keeps state between requests
 */

const SNIPPET_MS = 120; // the wait after the last change, before the code is written again

/**
 * Runs the playground of a model.
 * @param {PlayData} play
 */
function start(play) {
  /** @type {SnippetKind} */
  let kind = /** @type {SnippetKind} */ ($("[data-snippet][aria-pressed=true]")?.dataset.snippet ?? "grpc");
  let ready = false;
  let busy = false;
  let timer = 0;
  const versions = need("#play-version", HTMLSelectElement);
  const other = need("#play-other", HTMLSelectElement);
  const inputs = play.signature.inputs.map((tensor) =>
    play.handler ? new HandlerInput(tensor, () => ready && changed()) : new TensorInput(tensor, () => ready && changed(), play.max_batch),
  );

  function changed() {
    clearTimeout(timer);
    timer = setTimeout(showSnippet, SNIPPET_MS);
  }

  /**
   * Returns the tensors of the inputs; null if an input is wrong.
   * @param {boolean} loud whether to show the error at the wrong input
   * @param {boolean} whole whether to include elements that code could generate
   */
  async function gather(loud, whole) {
    /** @type {Tensor[]} */
    const rows = [];
    for (const input of inputs) {
      try {
        rows.push({ name: input.tensor.name, datatype: input.tensor.datatype, ...(await input.read(whole)) });
        if (loud) input.fail("");
      } catch (error) {
        if (!loud) return null;
        input.fail(messageOf(error));
        ($("[aria-invalid=true]", input.body) ?? $("input, textarea, select", input.body))?.focus();
        return null;
      }
    }
    return rows;
  }

  /**
   * Returns the parameters of the request's sequence, for a model that keeps state between requests; {} for any other model.
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

  /**
   * Returns the parameters of a request: its sequence, and the content type for a handler.
   * @returns {Parameters}
   */
  function parameters() {
    return inputs.reduce((found, input) => ({ ...found, ...(input instanceof HandlerInput ? input.parameters() : {}) }), sequence());
  }

  /** @param {Parameters} parameters the parameters of an example */
  function putSequence({ sequence_id: id, sequence_start: begins, sequence_end: ends }) {
    need("#sequence-id", HTMLInputElement).value = String(id ?? "");
    need("#sequence-start", HTMLInputElement).checked = Boolean(begins);
    need("#sequence-end", HTMLInputElement).checked = Boolean(ends);
  }

  /** Returns the versions that get the request: one version, or two to compare. */
  function targets() {
    return other.value === "none" ? [versions.value] : [versions.value, other.value];
  }

  async function showSnippet() {
    const rows = await gather(false, false);
    const [code, hint, files] = ["#snippet", "#snippet-hint", "#snippet-files"].map((place) => need(place, HTMLElement));
    files.replaceChildren();
    if (!rows) {
      code.textContent = "";
      hint.textContent = "Fill the inputs; the code for this request appears here.";
      return;
    }
    const outputs = play.signature.outputs.map(({ name }) => name);
    const withoutJson = play.signature.outputs.some(({ datatype }) => !fitsJson(datatype, []));
    /** @type {SnippetRequest} */
    const request = { ...play, server: serverAddresses(), version: versions.value, inputs: rows, outputs, binary: withoutJson, parameters: parameters() };
    code.textContent = snippet(kind, request);
    const token = play.token ? "Put a token with the right to infer into SLIPWAY_TOKEN." : "";
    const beside = dataFiles(kind, request);
    const from = beside.length ? "The code reads the inputs from these files:" : "";
    hint.textContent = [needs(kind, request), token, from].filter(Boolean).join(" ");
    files.replaceChildren(...beside.map(({ name, content }) => download(name, content)));
  }

  async function send() {
    if (busy) return;
    const rows = await gather(true, true);
    if (!rows) return;
    if (play.decoupled) return sendStream(rows);
    const encoded = encode(rows, { [TIMING]: true, [BINARY]: true, ...parameters() });
    busy = true;
    const button = need("#play-send", HTMLButtonElement);
    button.setAttribute("aria-disabled", "true"); // a disabled button would lose the focus
    need("#sent", HTMLElement).textContent = sentText(targets().map(addressOf), encoded);
    try {
      /** @type {Asked[]} */
      const asked = [];
      for (const version of targets()) asked.push(await askWhenReady(version, encoded));
      show(asked);
    } finally {
      busy = false;
      button.removeAttribute("aria-disabled");
      status("");
    }
  }

  /**
   * Sends a request to a decoupled model, and shows each response as it arrives.
   * @param {Tensor[]} rows
   */
  async function sendStream(rows) {
    const given = parameters();
    const json = { inputs: rows.map(kept), ...(Object.keys(given).length ? { parameters: given } : {}) };
    const version = versions.value;
    const [button, stop] = ["#play-send", "#play-stop"].map((place) => need(place, HTMLButtonElement));
    const giveUp = new AbortController();
    /** @type {Asked[]} */
    const parts = [];
    const list = el("div", { class: "stream" });
    busy = true;
    button.setAttribute("aria-disabled", "true");
    stop.hidden = false;
    stop.onclick = () => giveUp.abort();
    need("#sent", HTMLElement).textContent = `POST ${addressOf(version)}\n\n${readable(json)}`;
    need("#answer", HTMLElement).replaceChildren(list);
    try {
      if (play.state === "loading") await waitForModel();
      status("waiting for the first response");
      const end = await askStream(addressOf(version), version, json, giveUp.signal, (part) => {
        parts.push(part);
        status(counted(parts.length));
        list.append(el("section", { class: "play-side" }, el("h3", { class: "play-side-name num" }, `Response ${parts.length}, after ${latency(part.took)}`), ...views(part).slice(1)));
      });
      const total = `${counted(parts.length)} in ${latency(end.took)}`;
      if (end.refusal) list.append(...failureView(end.refusal, end.status === 200 ? undefined : end.status, play.handler ? play.log : ""));
      else list.append(el("p", { class: "card-body hint", "data-end": "" }, parts.length ? `That was all: ${total}.` : "The model ended the stream without a response."));
      need("#answer-time", HTMLElement).textContent = total;
      need("#received", HTMLElement).textContent = parts.map(({ answer }) => readable(answer)).join("\n\n") || end.refusal;
      need("#received-files", HTMLElement).replaceChildren(...(parts.length ? [download("answers.json", () => `[${parts.map(({ answer }) => answer && answerText(answer)).join(",\n")}]`)] : []));
      document.dispatchEvent(new CustomEvent("answered"));
    } finally {
      busy = false;
      if (document.activeElement === stop) button.focus();
      button.removeAttribute("aria-disabled");
      stop.hidden = true;
      status("");
    }
  }

  /**
   * Sends a request after the model has been loaded, and again if the server answers that the model is being loaded.
   * @param {string} version
   * @param {EncodedRequest} encoded
   */
  async function askWhenReady(version, encoded) {
    if (play.state === "loading") await waitForModel();
    status("waiting for the answer");
    const asked = await ask(addressOf(version), version, encoded);
    if (asked.status !== 503) return asked;
    const state = await waitForModel();
    if (state !== "ready") return asked;
    status("waiting for the answer");
    return ask(addressOf(version), version, encoded);
  }

  /** Waits while the model is being loaded, and shows this state. Returns the state after that. */
  async function waitForModel() {
    const waiting = `waiting until ${play.model} is ready; the request is sent then`;
    const summary = await waitUntilLoaded(play.addresses.model, () => status(waiting));
    if (summary) showState(summary.state);
    return summary?.state ?? "";
  }

  /** @param {string} state */
  function showState(state) {
    play.state = state;
    for (const note of $$("[data-state-note]")) note.hidden = note.dataset.stateNote !== noteOf(state);
  }

  /** @param {string} text */
  function status(text) {
    need("#play-status", HTMLElement).textContent = text;
  }

  /** @param {string} version a number or an alias; "" for the server's choice */
  function addressOf(version) {
    const address = version ? play.addresses.version.replace("VERSION", encodeURIComponent(version)) : play.addresses.infer;
    const { pathname, search } = withServer(new URL(address, location.href));
    return pathname + search;
  }

  /** @param {URL} url gets the chosen server, unless that is the local one */
  function withServer(url) {
    if (server() === play.local) url.searchParams.delete("server");
    else url.searchParams.set("server", server());
    return url;
  }

  /** Returns the name of the server that gets the request. */
  function server() {
    const chosen = $("#play-server");
    return chosen instanceof HTMLSelectElement ? chosen.value : play.local;
  }

  /** Returns the addresses for the code: those of other protocols are known of the local server only. */
  function serverAddresses() {
    return server() === play.local ? play.server : (play.servers[server()] ?? play.server);
  }

  /** @param {Asked[]} asked */
  function show(asked) {
    const [one, two] = asked;
    const view = need("#answer", HTMLElement);
    need("#answer-time", HTMLElement).textContent = two ? "two versions" : timesOf(one);
    const received = asked.map(({ answer, refusal }) => (answer ? readable(answer) : refusal));
    need("#received", HTMLElement).textContent = received.join("\n\n");
    need("#received-files", HTMLElement).replaceChildren(
      ...asked.flatMap(({ answer, version }) => (answer ? [download(`answer${version && `-${version}`}.json`, () => answerText(answer))] : [])),
    );
    if (two) {
      const sides = asked.map((each) => el("section", { class: "play-side" }, el("h3", { class: "play-side-name" }, versionName(each)), ...views(each)));
      view.replaceChildren(comparisonView([one, two]), el("div", { class: "play-sides" }, sides));
    } else {
      view.replaceChildren(...views(one));
    }
    if (play.sequence && one.answer) need("#sequence-start", HTMLInputElement).checked = false;
    showSnippet();
    document.dispatchEvent(new CustomEvent("answered"));
  }

  /** @param {Asked} asked */
  function views({ answer, took, refusal, status: code }) {
    if (!answer) return failureView(refusal, code, play.handler ? play.log : "");
    return answerView(answer, took, labelsOf, (output) => nameClasses(output, () => send()), play.handler);
  }

  /** @param {string} output */
  function labelsOf(output) {
    return keptNames(play.model, output) ?? play.labels[output];
  }

  /**
   * Asks the person for the names of an output's classes.
   * @param {string} output
   * @param {() => void} done
   */
  function nameClasses(output, done) {
    const dialog = need("#classes-dialog", HTMLDialogElement);
    const area = need("textarea", HTMLTextAreaElement, dialog);
    const file = need("input[type=file]", HTMLInputElement, dialog);
    area.value = (labelsOf(output) ?? []).join("\n");
    file.value = "";
    file.onchange = async () => (area.value = (await file.files?.[0]?.text()) ?? area.value);
    need("[data-output-name]", HTMLElement, dialog).textContent = output;
    const error = need(".error-text", HTMLElement, dialog);
    error.hidden = true;
    /** @param {string} text the names for this browser to keep */
    const close = (text) => {
      keepNames(play.model, output, text);
      dialog.close();
      done();
    };
    need("form", HTMLFormElement, dialog).onsubmit = (event) => {
      event.preventDefault();
      close(area.value);
    };
    const keep = $("[data-keep]", dialog);
    if (keep) keep.onclick = async () => {
      try {
        const names = area.value.trim() ? area.value.trim().split(/\r?\n/).map((line) => line.trim()) : [];
        await request(play.addresses.class_names, { method: "PUT", json: { output, names } });
        if (names.length) play.labels[output] = names;
        else delete play.labels[output];
        close("");
      } catch (problem) {
        error.textContent = sentenceOf(problem);
        error.hidden = false;
      }
    };
    dialog.showModal();
  }

  /** Writes the chosen versions into the address, so that a person can share the address and return to it. */
  function keepAddress() {
    const url = new URL(location.href);
    for (const name of ["version", "versions"]) url.searchParams.delete(name);
    const [one, two] = targets();
    if (two !== undefined) url.searchParams.set("versions", `${one || "default"},${two || "default"}`);
    else if (one) url.searchParams.set("version", one);
    if (play.own_signatures) location.href = url.href;
    else history.replaceState(null, "", url);
    showSnippet();
  }

  need("#play-inputs", HTMLElement).replaceChildren(...inputs.map(({ element }) => element));
  ready = true;
  need("#play", HTMLElement).dataset.ready = "";
  if (play.sequence) {
    need("#sequence-id", HTMLInputElement).value = String(Math.floor(Math.random() * 1e9) + 1);
    need("#play-sequence", HTMLElement).addEventListener("input", showSnippet);
  }
  showSnippet();
  // The head of the page refreshes itself, and the note about the state follows.
  document.body.addEventListener("htmx:afterSettle", () => {
    const state = $("#model-head .state")?.dataset.state;
    if (state) showState(state);
  });
  need("#play-form", HTMLFormElement).addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  for (const select of [versions, other]) select.addEventListener("change", keepAddress);
  $("#play-server")?.addEventListener("change", () => {
    history.replaceState(null, "", withServer(new URL(location.href)));
    showSnippet();
  });
  const buttons = $$("[data-snippet]");
  for (const button of buttons) {
    button.addEventListener("click", () => {
      kind = /** @type {SnippetKind} */ (button.dataset.snippet);
      buttons.forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      showSnippet();
    });
  }
  new Examples({
    addresses: play.addresses,
    version: () => versions.value,
    server,
    present: async () => {
      const rows = await gather(true, true);
      const given = parameters();
      return rows && { inputs: rows.map(kept), ...(Object.keys(given).length ? { parameters: given } : {}) };
    },
    put: ({ inputs: rows, parameters: given }) => {
      for (const input of inputs) {
        const row = rows.find(({ name }) => name === input.tensor.name);
        if (row) input.put(row.shape, unkept(row), given);
      }
      if (play.sequence && given) putSequence(given);
    },
  });
  if (play.handler) followLog();
  if (play.state === "loading") waitForModel().then(() => status(""));
}

/** @param {number} count */
function counted(count) {
  return count === 1 ? "1 response" : `${count} responses`;
}

/**
 * Returns the name of the page's note for a model's state; "" for none.
 * @param {string} state
 */
function noteOf(state) {
  if (["ready", "degraded"].includes(state)) return "";
  return ["asleep", "loading", "failed"].includes(state) ? state : "other";
}

/** @param {Asked} asked */
function timesOf({ status, took, answer }) {
  const server = answer && serverTime(answer);
  return server === null ? `${status || "no answer"} · ${latency(took)}` : `${status} · ${latency(server)} measured in the server, ${latency(took)} in this browser`;
}

/**
 * Returns a button that saves a file.
 * @param {string} name
 * @param {Uint8Array<ArrayBuffer> | (() => string)} content
 */
function download(name, content) {
  const save = () => saveFile(name, typeof content === "function" ? content() : content);
  const label = typeof content === "function" ? `Download ${name}` : `Download ${name} (${size(content.length)})`;
  return el("button", { class: "button small", type: "button", click: save }, icon("file"), label);
}

/**
 * Returns a whole answer as JSON.
 * @param {import("../playground/wire.js").Answer} answer
 */
function answerText(answer) {
  return JSON.stringify({ ...answer, outputs: answer.outputs.map(kept) }, null, 1);
}

/**
 * Writes a request for reading.
 * @param {string[]} addresses
 * @param {EncodedRequest} request
 */
function sentText(addresses, { json, headers, binaryLength }) {
  const head = Object.entries(headers).map(([name, value]) => `${name}: ${value}`);
  const binary = binaryLength ? `\n\n+ ${size(binaryLength)} of binary data` : "";
  return `${addresses.map((address) => `POST ${address}`).join("\n")}\n${head.join("\n")}\n\n${readable(json)}${binary}`;
}

const play = /** @type {PlayData | null} */ (data("play-data"));
if (play) start(play);
