// Sends the file of a batch job: a new one, or the rest of one that was interrupted. Then the page of the batch job opens.

import { complain, el, need } from "../core/dom.js";
import { duration, size } from "../core/format.js";
import { request, sentenceOf } from "../core/request.js";
import { fromDrop, watchInput } from "../uploads/files.js";
import { Transfer } from "../uploads/transfer.js";

/** @import { ChosenFile } from "../uploads/files.js" */

const section = document.querySelector("#batch-files");
if (section instanceof HTMLElement) listen(section);

/** @param {HTMLElement} section */
function listen(section) {
  const drop = need("#drop", HTMLElement);
  const input = need("#file-input", HTMLInputElement);
  /** @param {ChosenFile[]} chosen */
  const begin = (chosen) => send(section, drop, chosen);
  need("#choose", HTMLButtonElement).addEventListener("click", () => input.click());
  watchInput(input, begin);
  drop.addEventListener("dragover", (event) => {
    event.preventDefault();
    drop.classList.add("over");
  });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer) begin(await fromDrop(event.dataTransfer));
  });
}

/**
 * Announces a file, unless it was announced before, and sends it.
 * @param {HTMLElement} section
 * @param {HTMLElement} drop
 * @param {ChosenFile[]} chosen
 */
async function send(section, drop, chosen) {
  const { create = "", model = "", batch = "", name = "", size: whole = "" } = section.dataset;
  const file = chosen[0]?.file;
  const refused = !file || chosen.length > 1 ? "Choose one file." : batch && (file.name !== name || String(file.size) !== whole) ? `This is not ${name}, as it was before.` : "";
  complain(drop, refused);
  if (refused) return;
  try {
    const json = { model_name: model, files: [{ path: file.name, size: file.size }] };
    const id = batch ? "" : /** @type {{ id: string }} */ (await request(create, { method: "POST", json })).id;
    drop.hidden = true;
    need("#transfer", HTMLElement).hidden = false;
    need("#file-list", HTMLElement).replaceChildren(el("li", {}, el("span", { class: "mono" }, file.name)));
    const row = { number: 0, path: file.name, size: file.size, received: Number(section.dataset.received ?? 0), file };
    await new Transfer(batch || `${create}/${id}`, [row], show).run();
    location.href = section.dataset.page ?? `/batches/${id}/`;
  } catch (error) {
    drop.hidden = false;
    complain(drop, sentenceOf(error));
  }
}

/**
 * Shows the progress of the transfer.
 * @param {Transfer} transfer
 */
function show({ received, total, speed, state }) {
  const bar = need("#transfer-bar", HTMLProgressElement);
  bar.max = total || 1;
  bar.value = received;
  need("#transfer-done", HTMLElement).textContent = `${size(received)} of ${size(total)}`;
  const left = speed ? `${size(speed)}/s, ${duration((total - received) / speed)} left` : "";
  need("#transfer-speed", HTMLElement).textContent = state === "waiting" ? "waiting for the connection" : left;
}
