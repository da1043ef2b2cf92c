// The upload flow: choosing, sending with progress, going on after an interruption; then the page's own steps.

import { $, $$, data, el, request, toast } from "./dom.js";
import { duration, size } from "./format.js";
import { fromDrop, fromInput, proposedName, tidy } from "./files.js";
import { Transfer } from "./transfer.js";
import { startEditor } from "./configuration.js";

let transfer = null;

function showTransfer() {
  const { received, total, speed, state } = transfer;
  const bar = $("#transfer-bar");
  bar.max = total || 1;
  bar.value = received;
  $("#transfer-done").textContent = `${size(received)} of ${size(total)}`;
  const left = speed ? `${size(speed)}/s, ${duration((total - received) / speed)} left` : "";
  $("#transfer-speed").textContent = { paused: "paused", waiting: "waiting for the connection", done: "complete" }[state] ?? left;
  $("#transfer-title").textContent = { paused: "Paused", waiting: "Connection lost", done: "Uploaded" }[state] ?? "Uploading";
  const note = $("#transfer-note");
  note.hidden = state !== "waiting";
  if (state === "waiting") $("p", note).textContent = "The connection is lost. What was sent is kept, and the upload goes on by itself when it is back.";
  const pause = $("#transfer-pause");
  pause.hidden = state === "done";
  pause.lastChild.textContent = state === "paused" ? "Resume" : "Pause";
  $('[data-step="upload"] [data-step-detail]').textContent = `${size(received)} of ${size(total)}`;
  for (const row of transfer.rows) {
    const line = $(`#file-list [data-file="${row.number}"] .hint`);
    if (line) line.textContent = row.received >= row.size ? size(row.size) : `${size(row.received)} of ${size(row.size)}`;
  }
}

async function send(address, rows, id) {
  $("#transfer").hidden = false;
  $("#file-list").replaceChildren(...rows.map((row) => el("li", { "data-file": row.number }, el("span", { class: "mono" }, row.path), el("span", { class: "hint num push" }))));
  transfer = new Transfer(address, rows, showTransfer);
  showTransfer();
  const guard = (event) => event.preventDefault();
  addEventListener("beforeunload", guard);
  try {
    await transfer.run();
    removeEventListener("beforeunload", guard);
    await complete(address);
    location.href = `/uploads/${id}/`;
  } catch (error) {
    removeEventListener("beforeunload", guard);
    transfer.state = "failed";
    $("#transfer-title").textContent = "Stopped";
    $("#transfer-speed").textContent = "";
    toast(error.message, "failed");
  }
}

/** The last word may meet a lost connection too; asked twice it does no harm. */
async function complete(address) {
  for (let tries = 0; ; tries += 1) {
    try {
      return await request(`${address}/complete`, { method: "POST", json: {} });
    } catch (error) {
      if (error.status === 409) return null;
      if (!error.offline || tries > 60) throw error;
      await new Promise((wake) => setTimeout(wake, 1000));
    }
  }
}

function nameError(text) {
  const field = $("#model-name");
  const line = $("#model-name-error");
  line.textContent = text;
  line.hidden = !text;
  if (text) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}

export async function begin(chosen) {
  const { files } = tidy(chosen);
  if (!files.length) return toast("There was no file in that.", "failed");
  const field = $("#model-name");
  if (!field.value.trim()) field.value = proposedName(chosen);
  const name = field.value.trim();
  nameError("");
  const address = $("#upload-files").dataset.create;
  let upload;
  try {
    upload = await request(address, { method: "POST", json: { model_name: name, files: files.map(({ file, path }) => ({ path, size: file.size })) } });
  } catch (error) {
    nameError(error.message); // the server knows what a name may be
    field.focus();
    return null;
  }
  $("#drop").hidden = true;
  field.readOnly = true;
  history.replaceState({}, "", `/uploads/${upload.id}/`);
  const rows = upload.files.map((row, index) => ({ ...row, number: row.number ?? index, received: row.received ?? 0, file: files[index].file }));
  return send(`${address}/${upload.id}`, rows, upload.id);
}

/** The same files chosen again, for an upload that was left: each goes on where the server stands. */
function goOn(chosen) {
  const known = data("upload-data");
  const { files } = tidy(chosen);
  const rows = known.files.map((row) => ({ ...row, file: files.find(({ file, path }) => file.size === row.size && (path === row.path || row.path.endsWith(`/${path}`) || known.files.length === 1))?.file }));
  const missing = rows.filter((row) => !row.file && row.received < row.size);
  if (missing.length) return toast(`Choose the same files: ${missing[0].path} of ${size(missing[0].size)} is not among these.`, "failed");
  $("#transfer-resume").hidden = true;
  return send(`${$("#upload-files").dataset.create}/${known.id}`, rows, known.id);
}

/** Whether this person may publish with the present text, and if not, which right is missing and for what. */
function showRefusal({ refused }) {
  const box = $("#refusal");
  if (!box) return;
  box.hidden = !refused;
  $("p", box).textContent = refused;
  $("#publish").disabled = Boolean(refused);
}

export function start() {
  if ($("#config")) startEditor(showRefusal);
  const section = $("#upload-files");
  if (!section) return;
  const take = data("upload-data") ? goOn : begin;
  for (const input of $$("#file-input, #folder-input")) {
    const taken = () => {
      if (input.files.length) take(fromInput(input));
      input.value = "";
    };
    input.addEventListener("change", taken);
    if (input.files.length) taken(); // chosen before this module ran
  }
  $("#choose-file")?.addEventListener("click", () => $("#file-input").click());
  $("#choose-folder")?.addEventListener("click", () => $("#folder-input").click());
  $("#transfer-resume")?.addEventListener("click", () => $("#file-input").click());
  $("#transfer-pause").addEventListener("click", () => (transfer.state === "paused" ? transfer.resume() : transfer.pause()));
  $("#model-name")?.addEventListener("input", () => nameError(""));
  const drop = $("#drop") ?? section;
  addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  addEventListener("dragleave", (event) => event.relatedTarget || drop.classList.remove("over"));
  addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (!transfer) take(await fromDrop(event.dataTransfer));
  });
}

start();
document.body.addEventListener("htmx:afterSettle", () => {
  if ($("#config")) startEditor(showRefusal);
});
