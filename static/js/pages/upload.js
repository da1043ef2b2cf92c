// The upload flow: choosing, sending with progress, going on after an interruption; then the page's own steps.

import { $, complain, data, el, need } from "../core/dom.js";
import { duration, size } from "../core/format.js";
import { RequestError, request } from "../core/request.js";
import { fromDrop, fromInput, matchFiles, proposedName, tidy } from "../uploads/files.js";
import { Transfer } from "../uploads/transfer.js";
import { startEditor } from "../configuration/editor.js";

/**
 * @import { Preview } from "../configuration/editor.js"
 * @import { ChosenFile } from "../uploads/files.js"
 * @import { TransferRow, TransferState } from "../uploads/transfer.js"
 */

/**
 * What the server knows of an upload.
 * @typedef {object} UploadData
 * @property {string | number} id
 * @property {Omit<TransferRow, "file">[]} files
 */

/** @type {Partial<Record<TransferState, string>>} */
const TITLES = { paused: "Paused", waiting: "Connection lost", done: "Uploaded" };
/** @type {Partial<Record<TransferState, string>>} */
const SPEEDS = { paused: "paused", waiting: "waiting for the connection", done: "complete" };
const LOST = "The connection is lost. What was sent is kept, and the upload goes on by itself when it is back.";
const COMPLETE_TRIES = 60;

/** @type {Transfer | null} */
let transfer = null;
/** The address that this document shows. */
let here = location.pathname;

/**
 * Shows how far a transfer is.
 * @param {Transfer} transfer
 */
function showTransfer({ received, total, speed, state, rows }) {
  const done = `${size(received)} of ${size(total)}`;
  const left = speed ? `${size(speed)}/s, ${duration((total - received) / speed)} left` : "";
  const bar = need("#transfer-bar", HTMLProgressElement);
  bar.max = total || 1;
  bar.value = received;
  need("#transfer-done", HTMLElement).textContent = done;
  need("#transfer-speed", HTMLElement).textContent = SPEEDS[state] ?? left;
  need("#transfer-title", HTMLElement).textContent = TITLES[state] ?? "Uploading";
  const note = need("#transfer-note", HTMLElement);
  note.hidden = state !== "waiting";
  if (state === "waiting") need("p", HTMLElement, note).textContent = LOST;
  const pause = need("#transfer-pause", HTMLButtonElement);
  pause.hidden = state === "done";
  if (pause.lastChild) pause.lastChild.textContent = state === "paused" ? "Resume" : "Pause";
  need('[data-step="upload"] [data-step-detail]', HTMLElement).textContent = done;
  for (const row of rows) {
    const line = $(`#file-list [data-file="${row.number}"] .hint`);
    if (line) line.textContent = row.received >= row.size ? size(row.size) : `${size(row.received)} of ${size(row.size)}`;
  }
}

/**
 * Sends the files of an upload, then opens its page.
 * @param {string} address
 * @param {TransferRow[]} rows
 * @param {string | number} id
 */
async function send(address, rows, id) {
  need("#transfer", HTMLElement).hidden = false;
  complain(need("#transfer-bar", HTMLElement), "");
  const lines = rows.map((row) => {
    const path = el("span", { class: "mono" }, row.path);
    return el("li", { "data-file": row.number }, path, el("span", { class: "hint num push" }));
  });
  need("#file-list", HTMLElement).replaceChildren(...lines);
  transfer = new Transfer(address, rows, showTransfer);
  showTransfer(transfer);
  const guard = (/** @type {Event} */ event) => event.preventDefault();
  addEventListener("beforeunload", guard);
  try {
    await transfer.run();
    removeEventListener("beforeunload", guard);
    await complete(address);
    location.href = `/uploads/${id}/`;
  } catch (error) {
    removeEventListener("beforeunload", guard);
    transfer.state = "failed";
    need("#transfer-title", HTMLElement).textContent = "Stopped";
    need("#transfer-speed", HTMLElement).textContent = "";
    complain(need("#transfer-bar", HTMLElement), error instanceof Error ? error.message : String(error));
  }
}

/**
 * Says that every byte is there. That may meet a lost connection too; asked twice it does no harm.
 * @param {string} address
 */
async function complete(address) {
  for (let tries = 0; ; tries += 1) {
    try {
      await request(`${address}/complete`, { method: "POST", json: {} });
      return;
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      if (error.status === 409) return;
      if (!error.offline || tries > COMPLETE_TRIES) throw error;
      await new Promise((wake) => setTimeout(wake, 1000));
    }
  }
}

/**
 * Says beside the name what is wrong with it; "" for nothing.
 * @param {string} text
 */
function nameError(text) {
  const field = need("#model-name", HTMLInputElement);
  const line = need("#model-name-error", HTMLElement);
  line.textContent = text;
  line.hidden = !text;
  if (text) field.setAttribute("aria-invalid", "true");
  else field.removeAttribute("aria-invalid");
}

/** Returns the address that uploads are made at. */
function uploadsAddress() {
  return need("#upload-files", HTMLElement).dataset.create ?? "";
}

/**
 * Begins an upload of the files that were chosen.
 * @param {ChosenFile[]} chosen
 */
export async function begin(chosen) {
  const { files } = tidy(chosen);
  if (!files.length) {
    complain(need("#drop", HTMLElement), "There was no file in that.");
    return;
  }
  complain(need("#drop", HTMLElement), "");
  const field = need("#model-name", HTMLInputElement);
  if (!field.value.trim()) field.value = proposedName(chosen);
  nameError("");
  const address = uploadsAddress();
  const told = files.map(({ file, path }) => ({ path, size: file.size }));
  let upload;
  try {
    const json = { model_name: field.value.trim(), files: told };
    upload = /** @type {UploadData} */ (await request(address, { method: "POST", json }));
  } catch (error) {
    nameError(error instanceof Error ? error.message : String(error)); // the server knows what a name may be
    field.focus();
    return;
  }
  need("#drop", HTMLElement).hidden = true;
  field.readOnly = true;
  history.replaceState({}, "", `/uploads/${upload.id}/`);
  here = location.pathname;
  const rows = upload.files.map((row, index) => ({ ...row, file: files[index].file }));
  await send(`${address}/${upload.id}`, rows, upload.id);
}

/**
 * Goes on with an upload that was left, when the same files are chosen again: each goes on where the server stands.
 * @param {UploadData} known
 * @param {ChosenFile[]} chosen
 */
async function goOn(known, chosen) {
  const rows = matchFiles(known.files, chosen);
  const missing = rows.find((row) => !row.file && row.received < row.size);
  if (missing) {
    const text = `Choose the same files: ${missing.path} of ${size(missing.size)} is not among these.`;
    complain(need("#transfer-bar", HTMLElement), text);
    return;
  }
  need("#transfer-resume", HTMLElement).hidden = true;
  await send(`${uploadsAddress()}/${known.id}`, rows, known.id);
}

/**
 * Says whether this person may publish with the present text, and if not, which right is missing and for what.
 * @param {Preview} preview
 */
function showRefusal({ refused }) {
  const box = $("#refusal");
  if (!box) return;
  box.hidden = !refused;
  need("p", HTMLElement, box).textContent = refused;
  need("#publish", HTMLButtonElement).disabled = Boolean(refused);
}

/**
 * Takes what a person chooses with a file input.
 * @param {HTMLInputElement} input
 * @param {(chosen: ChosenFile[]) => void} take
 */
function watchInput(input, take) {
  const taken = () => {
    if (input.files?.length) take(fromInput(input));
    input.value = "";
  };
  input.addEventListener("change", taken);
  if (input.files?.length) taken(); // chosen before this module ran
}

/**
 * Takes what a person chooses and drops, while files are to be sent.
 * @param {HTMLElement} section
 */
function takeFiles(section) {
  const known = /** @type {UploadData | null} */ (data("upload-data"));
  const take = (/** @type {ChosenFile[]} */ chosen) => (known ? goOn(known, chosen) : begin(chosen));
  for (const id of ["#file-input", "#folder-input"]) if ($(id)) watchInput(need(id, HTMLInputElement), take);
  $("#choose-file")?.addEventListener("click", () => $("#file-input")?.click());
  $("#choose-folder")?.addEventListener("click", () => $("#folder-input")?.click());
  $("#transfer-resume")?.addEventListener("click", () => $("#file-input")?.click());
  $("#transfer-pause")?.addEventListener("click", () => (transfer?.state === "paused" ? transfer.resume() : transfer?.pause()));
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
    if (!transfer && event.dataTransfer) take(await fromDrop(event.dataTransfer));
  });
}

// A file that was dropped on the list of models put this page in its place without leaving the document, so that going back to
// the list only changes the address.
addEventListener("popstate", () => location.pathname !== here && location.reload());
const section = $("#upload-files");
startEditor(showRefusal);
if (section) takeFiles(section);
document.body.addEventListener("htmx:afterSettle", () => startEditor(showRefusal));
