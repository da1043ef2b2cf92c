// A model's configuration page: shows the effect of a change before it is applied.

import { $, $$, el, need } from "../core/dom.js";
import { startEditor } from "../configuration/editor.js";
import { diffLines } from "../configuration/diff.js";

/** @import { Preview } from "../configuration/editor.js" */

const review = /** @type {HTMLButtonElement | null} */ ($("#config-review"));
const discard = need("#config-reset", HTMLButtonElement);
const summary = need("#config-summary", HTMLElement);
const resting = [...summary.childNodes];
/** @type {Preview | null} */
let newest = null;

/** @param {Preview} preview */
function follow(preview) {
  newest = preview;
  const changed = Boolean(editor?.changed);
  discard.disabled = !changed;
  if (review) review.disabled = !changed || !preview.valid || Boolean(preview.refused);
  if (!changed) summary.replaceChildren(...resting);
  else if (!preview.valid) summary.textContent = "The text has errors; it cannot be applied yet.";
  else summary.textContent = preview.refused || preview.effect_sentence;
}

/**
 * @param {HTMLElement} box
 * @param {string} diff
 */
function showDiff(box, diff) {
  box.replaceChildren(...diffLines(diff).map(({ kind, text }) => el("span", { class: kind }, text || " ")));
}

/** @param {Preview} preview */
function showReview({ effect_sentence: effect, diff, dropped_comments: dropped }) {
  need("#review-effect p", HTMLElement).textContent = effect;
  showDiff(need("#review-diff", HTMLElement), diff);
  const comments = need("#review-comments", HTMLElement);
  comments.hidden = !dropped.length;
  need("ul", HTMLElement, comments).replaceChildren(...dropped.map((line) => el("li", {}, line)));
  need("#review", HTMLDialogElement).showModal();
}

const editor = startEditor(follow);

discard.addEventListener("click", () => editor?.reset());
for (const button of $$("[data-use]")) {
  button.addEventListener("click", () => {
    editor?.use(need(button.dataset.use ?? "", HTMLElement).textContent ?? "");
    need("#config-text", HTMLTextAreaElement).focus();
  });
}
review?.addEventListener("click", () => newest && showReview(newest));
addEventListener("beforeunload", (event) => {
  if (editor?.changed && !need("#review", HTMLDialogElement).open) event.preventDefault();
});
