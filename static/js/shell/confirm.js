// Forms that ask for a confirmation before they are sent.

import { need } from "../core/dom.js";

/**
 * Asks for a confirmation if a form has `data-confirm`. With `data-confirm-name`, the person must type that name.
 * @param {SubmitEvent} event
 */
export function confirmFirst(event) {
  const form = event.target;
  if (!(form instanceof HTMLFormElement) || !form.dataset.confirm || form.dataset.confirmed) return;
  event.preventDefault();
  const { confirm: text, confirmTitle: title, confirmName: name = "", danger } = form.dataset;
  const { submitter } = event;
  const does = submitter?.textContent?.trim();
  const dialog = need("#confirm", HTMLDialogElement);
  need("[data-title]", HTMLElement, dialog).textContent = title ?? does ?? "Go on?";
  need("[data-text]", HTMLElement, dialog).textContent = text;
  need("[data-name-field]", HTMLElement, dialog).hidden = !name;
  need("[data-name]", HTMLElement, dialog).textContent = name;
  const field = need("input", HTMLInputElement, dialog);
  const yes = need("[data-yes]", HTMLButtonElement, dialog);
  const check = () => (yes.disabled = name !== "" && field.value !== name);
  field.value = "";
  field.oninput = check;
  check();
  yes.textContent = does ?? "Go on";
  yes.className = danger === undefined ? "button primary" : "button danger";
  yes.onclick = () => {
    form.dataset.confirmed = "yes";
    dialog.close();
    form.requestSubmit(submitter);
    delete form.dataset.confirmed;
  };
  dialog.showModal();
  if (name) field.focus();
}
