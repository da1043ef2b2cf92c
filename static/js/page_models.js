// The list of models: live numbers, and a file dropped anywhere begins an upload.

import { $ } from "./dom.js";
import { Live, showFreshness } from "./live.js";
import { memoryTexts, rememberModels, writeHeld, writeModels } from "./numbers.js";
import { fromDrop } from "./files.js";

let held = null;
const show = () => {
  writeModels();
  writeHeld(held);
};

new Live("/ws/live/", {
  onPoint: (message) => {
    rememberModels(message);
    held = memoryTexts(message.memory);
    show();
  },
  onFresh: (fresh, age) => showFreshness($("#freshness"), $("#main"), fresh, age),
});
document.body.addEventListener("htmx:afterSwap", show);

const veil = $("#drop-veil");
const target = $("[data-new]");
if (target) {
  const carriesFiles = (event) => event.dataTransfer?.types.includes("Files");
  addEventListener("dragover", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    veil.hidden = false;
  });
  addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) veil.hidden = true;
  });
  addEventListener("drop", (event) => {
    if (!carriesFiles(event)) return;
    event.preventDefault();
    veil.hidden = true;
    upload(fromDrop(event.dataTransfer));
  });
}

/** The upload page in place of this one: a new document could not be given the files. */
async function upload(dropped) {
  const files = await dropped;
  const page = new DOMParser().parseFromString(await (await fetch(target.href)).text(), "text/html");
  history.pushState({}, "", target.href);
  document.title = page.title;
  $("#main").replaceWith(document.adoptNode($("#main", page)));
  addEventListener("popstate", () => location.reload());
  const { begin } = await import("./page_upload.js");
  begin(files);
}
