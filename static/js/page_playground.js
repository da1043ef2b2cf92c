// The playground: inputs from the signature, the request through the dashboard, the answer, the same as code.

import { $, $$, csrfToken, data, sentence } from "./dom.js";
import { latency, size } from "./format.js";
import { answerView, failureView } from "./answer.js";
import { Input } from "./inputs.js";
import { snippet } from "./snippets.js";
import { TIMING, encode, readable } from "./wire.js";

const play = data("play-data");
let kind = play?.decoupled ? "grpc" : "curl";

async function gather(loud) {
  const rows = [];
  for (const input of inputs) {
    try {
      rows.push({ name: input.tensor.name, datatype: input.tensor.datatype, ...(await input.read()) });
    } catch (error) {
      if (loud) input.fail(error.message);
      return null;
    }
  }
  return rows;
}

/** Which sequence the request belongs to, for a model that keeps state between requests; nothing for any other. */
function sequence() {
  if (!play.sequence) return {};
  const id = $("#sequence-id").value.trim();
  return { sequence_id: /^\d+$/.test(id) ? Number(id) : id, sequence_start: $("#sequence-start").checked, sequence_end: $("#sequence-end").checked };
}

/** Named only when it is not what the server would choose by itself. */
function chosenVersion() {
  const newest = Math.max(...play.live);
  return play.version && play.version !== newest ? play.version : null;
}

async function showSnippet() {
  const rows = await gather(false);
  const hint = $("#snippet-hint");
  if (!rows) {
    $("#snippet").textContent = "";
    hint.textContent = "Fill the inputs; the code for this request appears here.";
    return;
  }
  const outputs = play.signature.outputs.map(({ name }) => name);
  $("#snippet").textContent = snippet(kind, { ...play, version: chosenVersion(), inputs: rows, outputs, parameters: sequence() });
  const needs = { curl: "", http: "Needs: pip install 'tritonclient[http]'", grpc: "Needs: pip install 'tritonclient[grpc]'" }[kind];
  hint.textContent = [needs, play.token ? "Put a token with the right to infer into SLIPWAY_TOKEN." : ""].filter(Boolean).join(" ");
}

async function send(event) {
  event.preventDefault();
  const rows = await gather(true);
  if (!rows) return;
  const { json, content, headers, binaryLength } = encode(rows, { [TIMING]: true, ...sequence() });
  const button = $("#play-send");
  button.disabled = true;
  $("#play-status").textContent = "waiting for the answer";
  $("#sent").textContent = `POST ${play.infer}\n${Object.entries(headers).map(([name, value]) => `${name}: ${value}`).join("\n")}\n\n${readable(json)}${binaryLength ? `\n\n+ ${size(binaryLength)} of binary data` : ""}`;
  const start = performance.now();
  try {
    const response = await fetch(play.infer, { method: "POST", body: content, headers: { ...headers, Accept: "application/json", "X-CSRFToken": csrfToken() } });
    await show(response, performance.now() - start);
  } catch {
    $("#answer").replaceChildren(...failureView("The dashboard does not answer. Try again in a moment."));
    $("#answer-time").textContent = "";
  }
  button.disabled = false;
  $("#play-status").textContent = "";
}

async function show(response, took) {
  $("#answer-time").textContent = `${response.status} · ${latency(took)}`;
  if (!response.ok) {
    const copy = await response.clone().text();
    $("#received").textContent = copy;
    $("#answer").replaceChildren(...failureView(await sentence(response), response.status));
    return;
  }
  const answer = await response.json();
  $("#received").textContent = readable(answer);
  $("#answer").replaceChildren(...answerView(answer, took, play.labels));
  if (play.sequence) $("#sequence-start").checked = false;
  showSnippet();
}

let ready = false;
const inputs = play ? play.signature.inputs.map((tensor) => new Input(tensor, () => ready && showSnippet())) : [];
if (play) {
  $("#play-inputs").replaceChildren(...inputs.map(({ element }) => element));
  ready = true;
  if (play.sequence) {
    $("#sequence-id").value = String(Math.floor(Math.random() * 1e9) + 1);
    $("#play-sequence").addEventListener("input", showSnippet);
  }
  showSnippet();
  $("#play-form").addEventListener("submit", send);
  $("#play-version").addEventListener("change", (event) => {
    const url = new URL(location.href);
    url.searchParams.set("version", event.target.value);
    location.href = url;
  });
  for (const button of $$("[data-snippet]")) {
    button.addEventListener("click", () => {
      kind = button.dataset.snippet;
      $$("[data-snippet]").forEach((one) => one.setAttribute("aria-pressed", String(one === button)));
      showSnippet();
    });
  }
}
