// A model's configuration page: review what a change would do before it is done.

import { $, el } from "./dom.js";
import { startEditor } from "./configuration.js";

const review = $("#config-review");
const discard = $("#config-reset");
const summary = $("#config-summary");
const resting = summary.innerHTML;
let newest = null;

function follow(preview) {
  newest = preview;
  const changed = editor.changed;
  discard.disabled = !changed;
  if (review) review.disabled = !changed || !preview.valid || Boolean(preview.refused);
  if (!changed) summary.innerHTML = resting;
  else summary.textContent = preview.valid ? preview.refused || preview.effect_sentence : "The text has errors; it cannot be applied yet.";
}

function diffLines(text) {
  const lines = text.split("\n").filter((line, index) => !(index < 2 && /^(---|\+\+\+)/.test(line)));
  return lines.map((line) => el("span", { class: { "+": "add", "-": "del", "@": "at" }[line[0]] ?? null }, line || " "));
}

const editor = startEditor(follow);

discard.addEventListener("click", () => editor.reset());
review?.addEventListener("click", () => {
  const dialog = $("#review");
  $("#review-effect p").textContent = newest.effect_sentence;
  $("#review-diff").replaceChildren(...diffLines(newest.diff));
  const comments = $("#review-comments");
  comments.hidden = !newest.dropped_comments.length;
  $("ul", comments).replaceChildren(...newest.dropped_comments.map((line) => el("li", {}, line)));
  dialog.showModal();
});
addEventListener("beforeunload", (event) => {
  if (editor.changed && !$("#review").open) event.preventDefault();
});
