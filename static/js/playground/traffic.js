// Examples from live traffic: a person confirms the permission to see it, looks at the requests, and keeps any number of them.

import { $$, el, need } from "../core/dom.js";
import { RequestError, messageOf, request } from "../core/request.js";
import { readable } from "./wire.js";

/**
 * @typedef {object} Candidate a candidate in the REST API
 * @property {number} version
 * @property {string} inputs the inputs in words
 * @property {{ inputs: object[] }} request
 * @property {{ outputs: object[] }} expected
 *
 * @typedef {{ candidates: Candidate[], skipped: Record<string, number>, seconds: number }} Sampling
 *
 * @typedef {object} TrafficOptions
 * @property {{ traffic: string, examples: string }} addresses the addresses of the REST API
 * @property {() => string} server returns the name of the chosen server
 * @property {(done: string) => Promise<void>} kept reloads the examples
 */

/** @type {Record<string, string>} */
const SKIPPED = { too_large: "too large", failed: "failed", unfit: "that cannot be examples" };
const TICK_MS = 1000;

export class TrafficSampling {
  /** @type {Candidate[]} */
  #candidates = [];
  /** @type {AbortController | null} */
  #asking = null;

  /** @param {TrafficOptions} options */
  constructor(options) {
    this.options = options;
    this.dialog = need("#traffic-dialog", HTMLDialogElement);
    this.form = need("form", HTMLFormElement, this.dialog);
    this.found = need("[data-found]", HTMLElement, this.dialog);
    this.note = need("[data-note]", HTMLElement, this.dialog);
    this.start = need("[data-start]", HTMLButtonElement, this.dialog);
    this.keep = need("[data-keep]", HTMLButtonElement, this.dialog);
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.keep.hidden) this.#sample();
      else this.#keep();
    });
    this.dialog.addEventListener("close", () => this.#forget());
    this.found.addEventListener("change", () => this.#count());
  }

  open() {
    this.#forget();
    need("[name=consent]", HTMLInputElement, this.form).checked = false;
    this.dialog.showModal();
  }

  /** Removes the shown requests. */
  #forget() {
    this.#asking?.abort();
    this.#candidates = [];
    this.found.replaceChildren();
    this.note.textContent = "";
    need("[data-ask]", HTMLElement, this.dialog).hidden = false;
    this.start.hidden = false;
    this.keep.hidden = true;
    this.#fail("", "");
  }

  async #sample() {
    if (this.#asking) return;
    const field = (/** @type {string} */ name) => need(`[name=${name}]`, HTMLInputElement, this.form);
    this.#fail("", "");
    for (const name of ["count", "seconds"]) {
      if (!/^\d+$/.test(field(name).value.trim())) return this.#fail(name, `“${field(name).value}” is not a whole number.`);
    }
    if (!field("consent").checked) return this.#fail("consent", "Confirm this first.");
    this.#asking = new AbortController();
    this.start.setAttribute("aria-disabled", "true");
    const begin = Date.now();
    const tick = () => (this.note.textContent = `Waiting for requests, ${Math.round((Date.now() - begin) / 1000)} s of ${field("seconds").value} s.`);
    const timer = setInterval(tick, TICK_MS);
    tick();
    try {
      const json = { count: Number(field("count").value), seconds: Number(field("seconds").value), consent: true, server: this.options.server() };
      this.#show(/** @type {Sampling} */ (await request(this.options.addresses.traffic, { method: "POST", json, signal: this.#asking.signal })));
    } catch (problem) {
      this.note.textContent = "";
      if (!(problem instanceof Error && problem.name === "AbortError")) this.#refused(problem);
    } finally {
      clearInterval(timer);
      this.start.removeAttribute("aria-disabled");
      this.#asking = null;
    }
    return undefined;
  }

  /** @param {Sampling} sampling */
  #show({ candidates, skipped, seconds }) {
    this.#candidates = candidates;
    const passed = Object.entries(skipped).filter(([, count]) => count).map(([why, count]) => `${count} ${SKIPPED[why] ?? why}`);
    const left = passed.length ? ` Left out: ${passed.join(", ")}.` : "";
    const came = `${candidates.length} request${candidates.length === 1 ? "" : "s"} in ${Math.max(Math.round(seconds), 1)} s.${left}`;
    this.note.textContent = candidates.length ? `${came} Nothing is kept yet.` : `No request came that can be kept.${left} Try again while clients use the model.`;
    if (!candidates.length) return;
    need("[data-ask]", HTMLElement, this.dialog).hidden = true;
    this.start.hidden = true;
    this.keep.hidden = false;
    const golden = el("label", { class: "check" }, el("input", { type: "checkbox", name: "golden", checked: true }), el("span", {}, "As golden requests, with the answers that the clients got"));
    this.found.replaceChildren(el("ul", { class: "candidates" }, candidates.map(candidateView)), golden);
    this.#count();
    need("input[data-pick]", HTMLInputElement, this.found).focus();
  }

  /** Returns the numbers of the picked candidates. */
  #picked() {
    return $$("input[data-pick]", this.found).flatMap((box) => (box instanceof HTMLInputElement && box.checked ? [Number(box.dataset.pick)] : []));
  }

  #count() {
    const picked = this.#picked().length;
    this.keep.disabled = picked === 0;
    this.keep.textContent = `Keep ${picked} example${picked === 1 ? "" : "s"}`;
  }

  /** Keeps the picked requests one after another. A refused request stays, with its error, so that a person can rename it. */
  async #keep() {
    const golden = need("[name=golden]", HTMLInputElement, this.found).checked;
    const picked = this.#picked();
    let kept = 0;
    for (const number of picked) {
      const row = need(`[data-candidate="${number}"]`, HTMLElement, this.found);
      const name = need("input[data-name]", HTMLInputElement, row);
      const error = need(".error-text", HTMLElement, row);
      const { request: asked, expected } = this.#candidates[number];
      try {
        const json = { name: name.value, request: asked, expected, golden, source: "traffic" };
        await request(this.options.addresses.examples, { method: "POST", json });
        row.remove();
        kept += 1;
      } catch (problem) {
        error.textContent = messageOf(problem);
        error.hidden = false;
        name.focus();
      }
    }
    this.#count();
    if (kept === picked.length) this.dialog.close();
    if (kept) await this.options.kept(`Kept ${kept} example${kept === 1 ? "" : "s"} of traffic.`);
  }

  /** @param {unknown} problem */
  #refused(problem) {
    const body = problem instanceof RequestError ? problem.body : null;
    const [first] = /** @type {{ problems?: { field: string }[] } | null} */ (body)?.problems ?? [];
    this.#fail(first?.field ?? "", messageOf(problem));
  }

  /**
   * Shows an error at a field; "" removes all errors.
   * @param {string} field
   * @param {string} text
   */
  #fail(field, text) {
    for (const place of $$("[data-error]", this.dialog)) {
      place.textContent = place.dataset.error === field ? text : "";
      place.hidden = !place.textContent;
    }
    if (text && field) need(`[name=${field}]`, HTMLInputElement, this.form).focus();
  }
}

/**
 * @param {Candidate} candidate
 * @param {number} number
 */
function candidateView({ version, inputs, request: asked, expected }, number) {
  const name = `traffic ${new Date().toISOString().slice(0, 16).replace("T", " ")} ${number + 1}`;
  const pick = el("input", { type: "checkbox", checked: true, "data-pick": number, "aria-label": `Keep request ${number + 1}` });
  const field = el("input", { type: "text", value: name, "data-name": true, maxlength: 100, autocomplete: "off", "aria-label": `Name of request ${number + 1}` });
  const seen = el("details", {}, el("summary", {}, el("span", { class: "mono" }, inputs), el("span", { class: "hint" }, ` to version ${version}`)),
    el("div", { class: "code" }, el("pre", { tabindex: "0" }, readable({ request: asked, answer: expected }))));
  const error = el("span", { class: "error-text", role: "alert", hidden: true });
  return el("li", { "data-candidate": number }, pick, el("div", { class: "stack tight" }, field, error, seen));
}
