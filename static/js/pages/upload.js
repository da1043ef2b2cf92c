// The upload flow: choosing files, sending them with progress, resuming after an interruption; then the further steps of the page.

import { $, $$, complain, data, el, icon, need } from "../core/dom.js";
import { duration, size } from "../core/format.js";
import { RequestError, messageOf, request } from "../core/request.js";
import { asMissing, fromDrop, fromInput, matchFiles, proposedName, tidy, watchInput } from "../uploads/files.js";
import { judge, mayBeConverted } from "../uploads/judgement.js";
import { Transfer } from "../uploads/transfer.js";
import { startEditor } from "../configuration/editor.js";

/**
 * @import { Preview } from "../configuration/editor.js"
 * @import { ChosenFile } from "../uploads/files.js"
 * @import { FormatTable, Judgement } from "../uploads/judgement.js"
 * @import { TransferRow, TransferState } from "../uploads/transfer.js"
 */

/**
 * An upload in the server's answer.
 * @typedef {object} UploadData
 * @property {string | number} id
 * @property {Omit<TransferRow, "file">[]} files
 */

/** @type {Partial<Record<TransferState, string>>} */
const TITLES = { paused: "Paused", waiting: "Connection lost", done: "Uploaded" };
/** @type {Partial<Record<TransferState, string>>} */
const SPEEDS = { paused: "paused", waiting: "waiting for the connection", done: "complete" };
const LOST = "The connection is lost. The server keeps what it has, and the upload continues when the connection is back.";
const COMPLETE_TRIES = 60;

/** @type {Transfer | null} */
let transfer = null;
/** The last HTML about the changes for others after the upload is live. */
let shownLive = "";
/** The path that this document shows. */
let here = location.pathname;

/**
 * Shows the progress of a transfer.
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
    complain(need("#transfer-bar", HTMLElement), messageOf(error));
  }
}

/**
 * Reports to the dashboard that every byte was sent, and retries while the connection is lost. A second report does no harm.
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
 * Shows an error next to the name; "" removes the error.
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

/** Returns the address that creates uploads. */
function uploadsAddress() {
  return need("#upload-files", HTMLElement).dataset.create ?? "";
}

/** The chosen files that wait for the answer to a question. @type {ChosenFile[]} */
let pending = [];

/**
 * Begins an upload of the chosen files, unless they cannot be published or the page must first ask about their name.
 * @param {ChosenFile[]} chosen
 * @param {{ asVersion?: boolean }} [answer] asVersion: whether a person said that they are a new version of an existing model
 */
export async function begin(chosen, { asVersion = false } = {}) {
  const { files } = tidy(chosen);
  if (!files.length) {
    complain(need("#drop", HTMLElement), "That holds no file. Choose a model file or a folder with one.");
    return;
  }
  complain(need("#drop", HTMLElement), "");
  const field = need("#model-name", HTMLInputElement);
  const unnamed = !field.value.trim();
  if (unnamed) field.value = proposedName(chosen);
  pending = chosen;
  nameError("");
  showExisting("");
  const table = /** @type {FormatTable} */ (data("format-table"));
  const found = await judge(files, table);
  const judgement = found && mayBeConverted(found, files, table) ? null : found;
  showJudgement(judgement);
  if (judgement?.kind && unnamed) field.value = ""; // the next file will propose its own name
  if (judgement) return;
  const known = field.readOnly || asVersion;
  if (!known && (await asksOfExisting(field.value.trim()))) return;
  await announce(files, field, !known);
}

/**
 * Announces the files to the dashboard, and sends them.
 * @param {ChosenFile[]} files
 * @param {HTMLInputElement} field the field with the model's name
 * @param {boolean} newModel whether no model has that name
 */
async function announce(files, field, newModel) {
  const address = uploadsAddress();
  let upload;
  try {
    const json = { model_name: field.value.trim(), files: announced(files), new_model: newModel };
    upload = /** @type {UploadData} */ (await request(address, { method: "POST", json }));
  } catch (error) {
    nameError(messageOf(error)); // the server knows the rules of names
    field.focus();
    return;
  }
  pending = [];
  need("#drop", HTMLElement).hidden = true;
  field.readOnly = true;
  history.replaceState({}, "", `/uploads/${upload.id}/`);
  here = location.pathname;
  const rows = upload.files.map((row, index) => ({ ...row, file: files[index].file }));
  await send(`${address}/${upload.id}`, rows, upload.id);
}

/**
 * Returns the announcement of files for the dashboard.
 * @param {ChosenFile[]} files
 */
function announced(files) {
  return files.map(({ file, path }) => ({ path, size: file.size }));
}

/**
 * Shows why the chosen files cannot be published. If only weights are missing, a button can add them.
 * @param {Judgement | null} judgement null removes the text
 */
function showJudgement(judgement) {
  const box = need("#judgement", HTMLElement);
  box.hidden = !judgement;
  box.replaceChildren();
  if (!judgement) return;
  const { path, kind, missing } = judgement;
  const reason = el("div", { class: "stack tight" });
  if (kind) {
    reason.append(el("p", {}, el("b", {}, `${path} cannot be published.`), ` ${kind.sentence[0].toUpperCase()}${kind.sentence.slice(1)}.`));
    if (kind.code) reason.append(codeBlock(kind.code));
  } else {
    const names = missing.join(", ");
    const text = ` Its weights are in ${names}, which the exporter wrote next to it. Add that, too.`;
    reason.append(el("p", {}, el("b", {}, `${path} is not all of the model.`), text));
    const add = el("button", { class: "button primary", type: "button", click: () => chooseMissing(missing) }, icon("file"), `Add ${names}`);
    reason.append(el("div", { class: "row" }, add));
  }
  box.append(el("div", { class: "note failed" }, icon("failed"), reason));
  box.scrollIntoView({ block: "nearest" });
}

/**
 * Returns lines of code with a button to copy them.
 * @param {string} code
 */
function codeBlock(code) {
  const copy = el("button", { class: "button small copy icon-only", type: "button", "data-copy": "#judged-code", "aria-label": "Copy these lines" });
  copy.append(icon("copy"));
  return el("div", { class: "code" }, el("pre", { id: "judged-code", tabindex: 0 }, code), copy);
}

/**
 * Lets a person choose the missing files, then begins with all files.
 * @param {string[]} missing paths
 */
function chooseMissing(missing) {
  const input = el("input", { type: "file", multiple: true });
  input.addEventListener("change", () => begin([...tidy(pending).files, ...asMissing(fromInput(input), missing)]));
  input.click();
}

/**
 * Shows the question about a model's name; "" removes the question.
 * @param {string} html
 */
function showExisting(html) {
  const box = need("#existing", HTMLElement);
  box.hidden = !html;
  box.replaceChildren(...elementsOf(html));
}

/**
 * Returns the elements of HTML from the dashboard; no script in it runs.
 * @param {string} html
 */
function elementsOf(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  return [...page.body.children].map((child) => document.adoptNode(child));
}

/**
 * Asks whether the files are a new version of the model with that name. Returns false if there is no such model.
 * @param {string} name
 */
async function asksOfExisting(name) {
  const address = need("#upload-files", HTMLElement).dataset.existing ?? "";
  const answer = await fetch(`${address}?${new URLSearchParams({ name })}`, { credentials: "same-origin" });
  if (answer.status !== 200) return false;
  showExisting(await answer.text());
  $("#existing button")?.focus();
  return true;
}

/**
 * Handles the answer to the question about the name: a new version, the proposed name, or another name.
 * @param {Event} event
 */
function answerExisting(event) {
  const chosen = event.target instanceof Element ? event.target.closest("[data-existing]") : null;
  if (!(chosen instanceof HTMLButtonElement)) return;
  const field = need("#model-name", HTMLInputElement);
  const answer = chosen.dataset.existing ?? "";
  if (answer === "version") {
    begin(pending, { asVersion: true });
    return;
  }
  showExisting("");
  if (answer) field.value = answer;
  if (answer) begin(pending);
  else field.select();
  if (!answer) nameError("Type another name, then press Enter.");
}

/**
 * Resumes an upload when the same files are chosen again. Each file continues at the number of bytes that the server has.
 * @param {UploadData} known
 * @param {ChosenFile[]} chosen
 */
async function goOn(known, chosen) {
  const rows = matchFiles(known.files, chosen);
  const missing = rows.find((row) => !row.file && row.received < row.size);
  if (missing) {
    const text = `Choose the same files again: ${missing.path} of ${size(missing.size)} is missing.`;
    complain(need("#transfer-bar", HTMLElement), text);
    return;
  }
  need("#transfer-resume", HTMLElement).hidden = true;
  await send(`${uploadsAddress()}/${known.id}`, rows, known.id);
}

/**
 * Shows whether this person may publish with the current text, or else the missing permission and the reason for it. Also shows
 * whether the text fits the file, and the changes for others after the upload is live.
 * @param {Preview} preview
 */
function showRefusal({ refused, valid, live }) {
  const others = $("#once-live");
  if (others && live !== undefined && live !== shownLive) others.replaceChildren(...elementsOf(live)); // screen readers read out each change
  shownLive = live ?? shownLive;
  for (const note of $$("[data-fits]")) note.hidden = (note.dataset.fits === "yes") !== valid;
  const box = $("#refusal");
  if (!box) return;
  // A missing permission is shown first, as in publishing itself, because correcting errors would not help without it.
  const reason = refused || (valid ? "" : "The configuration has errors: fix them before you publish.");
  box.hidden = !reason;
  need("p", HTMLElement, box).textContent = reason;
  need("#publish", HTMLButtonElement).disabled = Boolean(reason);
  for (const badge of $$("[data-publishable]")) badge.hidden = (badge.dataset.publishable === "yes") === Boolean(reason);
}

/**
 * Takes the files that a person chooses or drops.
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
  $("#model-name")?.addEventListener("input", () => {
    nameError("");
    showExisting("");
  });
  $("#model-name")?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && pending.length) begin(pending);
  });
  $("#existing")?.addEventListener("click", answerExisting);
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

/** Starts the current step of the page: the editor, or the request for missing files. */
function startStep() {
  const editor = startEditor(showRefusal);
  const proposed = $("[data-use]");
  if (editor) proposed?.addEventListener("click", () => editor.use($(proposed.dataset.use ?? "")?.textContent ?? ""));
  const box = $("#missing");
  if (!box || box.dataset.started) return;
  box.dataset.started = "yes";
  takeMissing(box);
}

/**
 * Takes the files that the inspection of an upload found missing.
 * @param {HTMLElement} box
 */
function takeMissing(box) {
  const input = need("#missing-input", HTMLInputElement);
  const missing = /** @type {string[]} */ (data("missing-data"));
  need("#add-missing", HTMLElement).addEventListener("click", () => input.click());
  watchInput(input, async (chosen) => {
    const line = need("#missing-error", HTMLElement);
    line.hidden = true;
    const files = asMissing(tidy(chosen).files, missing);
    try {
      const upload = /** @type {UploadData} */ (await request(box.dataset.add ?? "", { method: "POST", json: { files: announced(files) } }));
      const fileOf = (/** @type {string} */ path) => files.find((one) => one.path === path)?.file;
      const rows = upload.files.filter(({ path }) => fileOf(path)).map((row) => ({ ...row, file: fileOf(row.path) }));
      await send(box.dataset.upload ?? "", rows, upload.id);
    } catch (error) {
      line.textContent = messageOf(error);
      line.hidden = false;
    }
  });
}

// After a drop on the list of models, this page is shown in the document of that list. Then the back button changes only the
// address, so that a reload is necessary.
addEventListener("popstate", () => location.pathname !== here && location.reload());
const section = $("#upload-files");
startStep();
if (section) takeFiles(section);
document.body.addEventListener("htmx:afterSettle", startStep);
