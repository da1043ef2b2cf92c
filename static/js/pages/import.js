// Imports archives of TorchServe: sends each archive as its own upload, then starts one job that imports all archives.

import { complain, el, need } from "../core/dom.js";
import { duration, size } from "../core/format.js";
import { request, sentenceOf } from "../core/request.js";
import { fromDrop, proposedName, watchInput } from "../uploads/files.js";
import { Transfer } from "../uploads/transfer.js";

/**
 * @import { ChosenFile } from "../uploads/files.js"
 * @import { TransferRow } from "../uploads/transfer.js"
 */

const LARGEST_PROPERTIES = 1 << 20;

const section = need("#archives", HTMLElement);
const drop = need("#drop", HTMLElement);
const input = need("#file-input", HTMLInputElement);

/**
 * Separates archives from the file of properties that they were served with.
 * @param {ChosenFile[]} chosen
 */
function sorted(chosen) {
  const properties = chosen.filter(({ file }) => /\.(properties|cfg)$/.test(file.name));
  const archives = chosen.filter(({ file }) => /\.(mar|war|tgz|tar\.gz)$/i.test(file.name));
  return { properties, archives, others: chosen.filter((one) => !properties.includes(one) && !archives.includes(one)) };
}

/**
 * Returns the reason why the chosen files cannot be imported; "" for none.
 * @param {ReturnType<typeof sorted>} files
 */
function refusal({ properties, archives, others }) {
  if (others.length) return `${others[0].path} is neither an archive of TorchServe (.mar, .tar.gz, .war) nor config.properties.`;
  if (!archives.length) return "There is no archive (.mar, .tar.gz, .war) among the files.";
  if (properties.length > 1) return "There is more than one config.properties; choose one.";
  if (properties[0]?.file.size > LARGEST_PROPERTIES) return `${properties[0].path} is too large; choose a file of at most 1 MiB.`;
  const twice = archives.find(({ file }, at) => archives.findIndex((other) => other.file.name === file.name) < at);
  return twice ? `Two archives are called ${twice.file.name}; rename one of them.` : "";
}

/**
 * Announces one archive, and sends it.
 * @param {ChosenFile} archive
 * @param {number} number the line of the archive in the list
 * @returns {Promise<string>} the upload's id
 */
async function send({ file }, number) {
  const address = section.dataset.create ?? "";
  const json = { model_name: proposedName([{ file, path: file.name }]) || "archive", files: [{ path: file.name, size: file.size }] };
  const upload = /** @type {{ id: string, files: Omit<TransferRow, "file">[] }} */ (await request(address, { method: "POST", json }));
  const transfer = new Transfer(`${address}/${upload.id}`, [{ ...upload.files[0], file }], (now) => show(now, number, file.name));
  show(transfer, number, file.name);
  await transfer.run();
  return upload.id;
}

/**
 * Shows the progress of an archive.
 * @param {Transfer} transfer
 * @param {number} number
 * @param {string} name
 */
function show({ received, total, speed, state }, number, name) {
  const bar = need("#transfer-bar", HTMLProgressElement);
  bar.max = total || 1;
  bar.value = received;
  need("#transfer-title", HTMLElement).textContent = `Uploading ${name}`;
  need("#transfer-done", HTMLElement).textContent = `${size(received)} of ${size(total)}`;
  const left = speed ? `${size(speed)}/s, ${duration((total - received) / speed)} left` : "";
  need("#transfer-speed", HTMLElement).textContent = state === "waiting" ? "waiting for the connection" : left;
  need(`#file-list [data-file="${number}"] .hint`, HTMLElement).textContent =
    state === "done" ? `${size(total)}, here` : `${size(received)} of ${size(total)}`;
}

/**
 * Sends the archives, and opens the job that imports them.
 * @param {ChosenFile[]} chosen
 */
async function begin(chosen) {
  const files = sorted(chosen);
  const refused = refusal(files);
  complain(drop, refused);
  if (refused) return;
  drop.hidden = true;
  need("#transfer", HTMLElement).hidden = false;
  const lines = files.archives.map(({ file }, at) =>
    el("li", { "data-file": at }, el("span", { class: "mono" }, file.name), el("span", { class: "hint num push" }, size(file.size))),
  );
  need("#file-list", HTMLElement).replaceChildren(...lines);
  const guard = (/** @type {Event} */ event) => event.preventDefault();
  addEventListener("beforeunload", guard);
  try {
    const uploads = [];
    for (const [at, archive] of files.archives.entries()) uploads.push(await send(archive, at));
    const properties = (await files.properties[0]?.file.text()) ?? "";
    const json = { uploads, properties };
    const job = /** @type {{ id: number }} */ (await request(section.dataset.import ?? "", { method: "POST", json }));
    removeEventListener("beforeunload", guard);
    location.href = `/jobs/${job.id}/`;
  } catch (error) {
    removeEventListener("beforeunload", guard);
    need("#transfer-title", HTMLElement).textContent = "Stopped";
    drop.hidden = false;
    complain(need("#transfer", HTMLElement), sentenceOf(error));
  }
}

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
