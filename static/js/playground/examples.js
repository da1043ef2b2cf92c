// Examples of a model's requests: loads them into the inputs, keeps, renames, deletes and runs them, and makes them golden.

import { $, $$, need } from "../core/dom.js";
import { RequestError, messageOf, request, sentenceOf } from "../core/request.js";
import { TrafficSampling } from "./traffic.js";
import { readable } from "./wire.js";

/**
 * @typedef {{ name: string, datatype: string, shape: number[], data?: import("./datatypes.js").Elements, base64?: string }} KeptTensor
 * @typedef {{ inputs: KeptTensor[], parameters?: import("./wire.js").Parameters }} KeptRequest
 *
 * @typedef {{ passed: boolean, version: string }} GoldenResult a result in the REST API; only the used fields
 *
 * @typedef {object} ExamplesOptions
 * @property {{ examples: string, golden_checks: string, traffic: string }} addresses the addresses of the REST API
 * @property {() => string} version returns the chosen version: a number or an alias, "" for the server's choice
 * @property {() => string} server returns the name of the chosen server
 * @property {() => Promise<KeptRequest | null>} present returns the request in the inputs; null, and an error, if one is wrong
 * @property {(request: KeptRequest) => void} put shows a request in the inputs
 */

/** Handles the buttons and dialogs of the card of examples. */
export class Examples {
  #loaded = ""; // the example in the inputs
  #source = "playground"; // the source of the request in the inputs: a client's request keeps its source under every name

  /** @param {ExamplesOptions} options */
  constructor(options) {
    this.options = options;
    this.place = need("#examples", HTMLElement);
    const { addresses } = options;
    this.traffic = $("#traffic-dialog") ? new TrafficSampling({ addresses, server: options.server, kept: (done) => this.#refresh(done) }) : null;
    const card = this.place.closest(".card");
    card?.addEventListener("click", ({ target }) => this.#clicked(target));
    document.addEventListener("submit", (event) => this.#submitted(event));
  }

  /** @param {EventTarget | null} target */
  #clicked(target) {
    const button = target instanceof Element ? target.closest("button[data-act]") : null;
    if (!(button instanceof HTMLElement)) return;
    const row = button.closest("tr");
    const name = row?.dataset.example ?? "";
    if (button.dataset.act === "load") this.#load(name);
    if (button.dataset.act === "keep") this.#keep();
    if (button.dataset.act === "rename") this.#rename(name);
    if (button.dataset.act === "golden" && row) this.#makeGolden(name, row.dataset);
    if (button.dataset.act === "run") this.#run(button);
    if (button.dataset.act === "traffic") this.traffic?.open();
  }

  /**
   * Deletes an example after a confirmation: the shell asks for the confirmation, and prevents the first submit.
   * @param {SubmitEvent} event
   */
  async #submitted(event) {
    const form = event.target;
    if (!(form instanceof HTMLFormElement) || form.dataset.act !== "delete" || event.defaultPrevented) return;
    event.preventDefault();
    const name = form.closest("tr")?.dataset.example ?? "";
    await this.#do(async () => {
      await request(this.#address(name), { method: "DELETE" });
      await this.#refresh(`Deleted example “${name}”.`);
    });
  }

  /** @param {string} name */
  async #load(name) {
    await this.#do(async () => {
      const example = /** @type {{ request: KeptRequest, source: string }} */ (await request(this.#address(name)));
      this.#source = example.source === "traffic" ? "traffic" : "playground";
      this.#loaded = name;
      this.options.put(example.request);
      this.#say(`“${name}” is in the inputs.`);
    });
  }

  async #keep() {
    const present = await this.options.present();
    if (!present) return;
    const again = this.#loaded && $(`tr[data-example="${CSS.escape(this.#loaded)}"]`, this.place) ? this.#loaded : "";
    const hint = again ? `With the name “${again}” it replaces that example's request; with another name it is a new example.` : "";
    this.#ask({ title: "Keep this request", yes: "Keep", name: again, hint }, async (name) => {
      const kept = { name, request: present, source: this.#source };
      if (again && name === again) await request(this.#address(name), { method: "PATCH", json: { request: present } });
      else await request(this.options.addresses.examples, { method: "POST", json: kept });
      this.#loaded = name;
      return `Kept as “${name}”.`;
    });
  }

  /** @param {string} before */
  #rename(before) {
    this.#ask({ title: "Rename the example", yes: "Rename", name: before, hint: "" }, async (name) => {
      await request(this.#address(before), { method: "PATCH", json: { name } });
      if (this.#loaded === before) this.#loaded = name;
      return `“${before}” is “${name}” now.`;
    });
  }

  /**
   * Asks for a name until `act` succeeds with that name. Shows errors at the field.
   * @param {{ title: string, yes: string, name: string, hint: string }} texts
   * @param {(name: string) => Promise<string>} act returns a sentence about its success
   */
  #ask({ title, yes, name, hint }, act) {
    const dialog = need("#example-dialog", HTMLDialogElement);
    const field = need("input", HTMLInputElement, dialog);
    const error = need("#example-error", HTMLElement);
    need("[data-title]", HTMLElement, dialog).textContent = title;
    need("[data-yes]", HTMLElement, dialog).textContent = yes;
    need("[data-hint]", HTMLElement, dialog).textContent = hint;
    field.value = name;
    error.hidden = true;
    need("form", HTMLFormElement, dialog).onsubmit = async (event) => {
      event.preventDefault();
      try {
        const done = await act(field.value.trim());
        dialog.close();
        await this.#refresh(done);
      } catch (problem) {
        error.textContent = sentenceOf(problem);
        error.hidden = false;
        field.setAttribute("aria-invalid", "true");
        field.focus();
      }
    };
    field.oninput = () => field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-invalid");
    dialog.showModal();
    field.select();
  }

  /**
   * @param {string} name
   * @param {DOMStringMap} example the data of its row
   */
  async #makeGolden(name, { expected, golden, absolute = "", relative = "" }) {
    const dialog = need("#golden-dialog", HTMLDialogElement);
    const form = need("form", HTMLFormElement, dialog);
    const area = need("#golden-expected", HTMLTextAreaElement);
    const field = (/** @type {string} */ which) => need(`[name=${which}]`, HTMLInputElement, form);
    need("[data-name]", HTMLElement, dialog).textContent = name;
    need("[data-ordinary]", HTMLElement, dialog).hidden = !golden;
    need("#golden-recorded", HTMLElement).textContent = "";
    this.#fail(form, "", "");
    area.value = "";
    field("absolute").value = absolute;
    field("relative").value = relative;
    need("[data-record]", HTMLElement, dialog).onclick = () => this.#record(form, name);
    need("[data-ordinary]", HTMLElement, dialog).onclick = () => this.#change(form, name, { golden: false });
    form.onsubmit = (event) => {
      event.preventDefault();
      this.#saveGolden(form, name);
    };
    dialog.showModal();
    if (!expected) {
      await this.#record(form, name);
      return;
    }
    const kept = await request(this.#address(name)).catch((problem) => this.#fail(form, "", sentenceOf(problem)));
    if (kept) area.value = textOf(/** @type {{ expected: { outputs: KeptTensor[] } }} */ (kept).expected);
  }

  /**
   * Sends the example to the server, and shows the answer as the expected answer.
   * @param {HTMLFormElement} form
   * @param {string} name
   */
  async #record(form, name) {
    const note = need("#golden-recorded", HTMLElement);
    note.textContent = "asking the server";
    try {
      const json = { version: this.options.version(), server: this.options.server() };
      const body = await request(`${this.#address(name)}/answer`, { method: "POST", json });
      const answer = /** @type {{ outputs: KeptTensor[], version: string }} */ (body);
      need("#golden-expected", HTMLTextAreaElement).value = textOf(answer);
      note.textContent = `The answer of version ${answer.version}, just now.`;
      this.#fail(form, "", "");
    } catch (problem) {
      note.textContent = "";
      this.#fail(form, "expected", `The present answer cannot be recorded: ${sentenceOf(problem)}`);
    }
  }

  /**
   * @param {HTMLFormElement} form
   * @param {string} name
   */
  #saveGolden(form, name) {
    this.#fail(form, "", "");
    const text = need("#golden-expected", HTMLTextAreaElement).value;
    /** @type {Record<string, unknown>} */
    const changes = { golden: true };
    try {
      changes.expected = JSON.parse(text);
    } catch (error) {
      this.#fail(form, "expected", text.trim() ? `This is not JSON: ${messageOf(error)}.` : "Record the present answer, or type the expected outputs.");
      return;
    }
    for (const which of ["absolute", "relative"]) {
      const given = need(`[name=${which}]`, HTMLInputElement, form).value.trim().replace(",", ".");
      changes[which] = Number(given);
      if (given === "" || !(Number(given) >= 0)) {
        this.#fail(form, which, `“${given}” is not a number from 0, such as 0.001.`);
        return;
      }
    }
    this.#change(form, name, changes);
  }

  /**
   * @param {HTMLFormElement} form
   * @param {string} name
   * @param {Record<string, unknown>} changes
   */
  async #change(form, name, changes) {
    try {
      await request(this.#address(name), { method: "PATCH", json: changes });
      form.closest("dialog")?.close();
      await this.#refresh(changes.golden ? `“${name}” is golden: releases are checked by it.` : `“${name}” is an ordinary example again.`);
    } catch (problem) {
      const body = problem instanceof RequestError ? problem.body : null;
      const [first] = /** @type {{ problems?: { field: string }[] } | null} */ (body)?.problems ?? [];
      this.#fail(form, first?.field ?? "", sentenceOf(problem));
    }
  }

  /**
   * Shows an error at a field of the dialog, or at its end if it has no such field; "" removes all errors.
   * @param {HTMLFormElement} form
   * @param {string} field
   * @param {string} text
   */
  #fail(form, field, text) {
    const places = $$("[data-error]", form);
    const place = places.find(({ dataset }) => dataset.error === field) ?? places.find(({ dataset }) => dataset.error === "");
    for (const one of places) {
      one.textContent = one === place ? text : "";
      one.hidden = one.textContent === "";
    }
    for (const one of $$("[name]", form)) {
      if (text && one.getAttribute("name") === field) one.setAttribute("aria-invalid", "true");
      else one.removeAttribute("aria-invalid");
    }
    if (text) $(`[name="${field}"]`, form)?.focus();
  }

  /** @param {HTMLElement} button */
  async #run(button) {
    if (button.getAttribute("aria-disabled")) return;
    button.setAttribute("aria-disabled", "true");
    this.#say("Running the golden requests.");
    await this.#do(async () => {
      const json = { version: this.options.version(), server: this.options.server() };
      const run = /** @type {{ passed: boolean, results: GoldenResult[] }} */ (
        await request(this.options.addresses.golden_checks, { method: "POST", json })
      );
      await this.#refresh(summaryOf(run.results, $("#play-server") ? ` on ${this.options.server()}` : ""));
    });
    button.removeAttribute("aria-disabled");
  }

  /**
   * Performs an action, and shows its error in the line of the card.
   * @param {() => Promise<void>} act
   */
  async #do(act) {
    try {
      await act();
    } catch (problem) {
      this.#say(sentenceOf(problem), true);
    }
  }

  /**
   * @param {string} text
   * @param {boolean} [failed]
   */
  #say(text, failed = false) {
    const line = need("#golden-summary", HTMLElement);
    line.textContent = text;
    line.classList.toggle("error-text", failed);
    line.classList.toggle("hint", !failed);
    line.hidden = false;
  }

  /** @param {string} done a sentence about what was done */
  async #refresh(done) {
    this.#say(done);
    // The region reloads automatically when its table changes, but people should see their own changes immediately.
    const response = await fetch(this.place.getAttribute("hx-get") ?? "", { headers: { "HX-Request": "true" } });
    if (!response.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const before = document.activeElement?.id;
    this.place.replaceChildren(...page.body.childNodes);
    if (document.activeElement !== document.body) return;
    // The focus stays on its element. If that element is gone, the focus moves to the button that keeps a request.
    ((before && document.getElementById(before)) || $('[data-act="keep"]'))?.focus();
  }

  /** @param {string} name */
  #address(name) {
    return `${this.options.addresses.examples}/${encodeURIComponent(name)}`;
  }
}

/**
 * Writes expected outputs for editing.
 * @param {{ outputs: KeptTensor[] }} expected
 */
function textOf({ outputs }) {
  return readable({ outputs }, Infinity, Infinity);
}

/**
 * Returns the outcome of a run in words.
 * @param {GoldenResult[]} results
 * @param {string} where " on" and the name of the server; "" if there is only one
 */
function summaryOf(results, where) {
  if (!results.length) return "No golden requests yet: keep a request, and make it golden.";
  const failed = results.filter(({ passed }) => !passed).length;
  const [{ version }] = results;
  const subject = `${version ? `Version ${version}` : "The server's choice"}${where}`;
  return failed ? `${subject} failed ${failed} of ${results.length} golden requests.` : `${subject} passed ${results.length === 1 ? "the golden request" : `all ${results.length} golden requests`}.`;
}
