// The doctor's page: asks for the checks, and shows each as soon as it is made.

import { $$, complain, el, need } from "../core/dom.js";
import { linesFrom, sentenceOf } from "../core/request.js";

/**
 * @typedef {object} Finding
 * @property {string} check
 * @property {"ok" | "wrong" | "skipped"} state
 * @property {string[]} faults
 * @property {string} why
 */

const run = need("#run", HTMLButtonElement);
const stop = need("#stop", HTMLButtonElement);
const status = need("#doctor", HTMLElement);
const rows = $$("tr[data-check]");
let asked = new AbortController();

/**
 * @param {HTMLElement} row
 * @param {string} state the name of a template, "" for none
 * @param {...Node} told
 */
function write(row, state, ...told) {
  const shown = state ? [need(`#state-${state}`, HTMLTemplateElement).content.cloneNode(true)] : [];
  need("[data-result]", HTMLElement, row).replaceChildren(...shown);
  need("[data-faults]", HTMLElement, row).replaceChildren(...told);
}

/** @param {string} text */
const hint = (text) => el("span", { class: "hint" }, text);

async function examine() {
  asked = new AbortController();
  run.disabled = true;
  stop.hidden = false;
  complain(status, "");
  status.textContent = `The first of ${rows.length} checks is being made.`;
  rows.forEach((row) => write(row, "", hint("not made yet")));
  let [made, wrong] = [0, 0];
  try {
    for await (const line of linesFrom(status.dataset.address ?? "", asked.signal)) {
      const found = /** @type {Finding & { error?: string }} */ (JSON.parse(line));
      if (found.error) throw new Error(found.error);
      const row = rows.find((one) => one.dataset.check === found.check);
      const told = found.faults.map((fault) => el("p", {}, fault));
      if (row) write(row, found.state, ...(told.length ? told : [hint(found.why || "no fault")]));
      made += 1;
      wrong += found.state === "wrong" ? 1 : 0;
      status.textContent = `${made} of ${rows.length} checks are made, ${wrong} found a fault.`;
    }
    status.textContent = wrong ? `${wrong} of ${made} checks found a fault.` : "All is well: no check found a fault.";
  } catch (problem) {
    status.textContent = `${asked.signal.aborted ? "Stopped" : "Broken off"} after ${made} of ${rows.length} checks.`;
    if (!asked.signal.aborted) complain(status, sentenceOf(problem));
  } finally {
    run.disabled = false;
    stop.hidden = true;
  }
}

run.addEventListener("click", examine);
stop.addEventListener("click", () => asked.abort());
