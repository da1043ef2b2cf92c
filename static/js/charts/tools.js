// The tools above the charts of a page: move and zoom, from and to, the earlier span, the heat map, the server.

import { $, $$ } from "../core/dom.js";
import { MOVES, fieldText, spanOfFields } from "./span.js";

/**
 * @import { Move, Span } from "./span.js"
 *
 * @typedef {object} Tooled the charts that the tools change
 * @property {Span} window the shown span
 * @property {(move: Move) => void} move
 * @property {(from: number, to: number) => void} zoomTo
 * @property {() => void} zoomOut
 * @property {(choice: { compare?: string, heat?: string }) => void} choose
 *
 * @typedef {object} Chosen
 * @property {Span} span the shown span
 * @property {boolean} zoomed whether another span than a range is shown
 * @property {string} compare
 * @property {boolean} heat whether latency is drawn as a heat map
 * @property {boolean} apart whether each version has its own lines, which leaves no place for a heat map
 */

/**
 * Connects the tools with the charts.
 * @param {Tooled} charts
 */
export function listenToTools(charts) {
  $("#zoom-out")?.addEventListener("click", () => charts.zoomOut());
  for (const button of $$("[data-move]")) {
    button.addEventListener("click", () => charts.move(MOVES[button.dataset.move ?? ""] ?? "in"));
  }
  $("#chart-compare")?.addEventListener("change", ({ target }) => {
    if (target instanceof HTMLSelectElement) charts.choose({ compare: target.value });
  });
  $("#chart-heat")?.addEventListener("change", ({ target }) => {
    if (target instanceof HTMLInputElement) charts.choose({ heat: target.checked ? "yes" : "no" });
  });
  $("#chart-server")?.addEventListener("change", ({ target }) => {
    if (!(target instanceof HTMLSelectElement)) return;
    const url = new URL(location.href);
    for (const name of ["server", "environment"]) url.searchParams.delete(name);
    for (const [name, value] of new URLSearchParams(target.value)) url.searchParams.set(name, value);
    location.assign(url);
  });
  listenToFields(charts);
}

/**
 * Shows the span of the fields from and to.
 * @param {Tooled} charts
 */
function listenToFields(charts) {
  const form = $("#range-form");
  if (!(form instanceof HTMLFormElement)) return;
  const [from, to] = /** @type {HTMLInputElement[]} */ ($$("input", form));
  const menu = form.closest("details");
  menu?.addEventListener("toggle", () => {
    if (menu.open) [from.value, to.value] = charts.window.map(fieldText);
  });
  form.addEventListener("input", () => to.setCustomValidity(""));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const span = spanOfFields(from.value, to.value);
    to.setCustomValidity(typeof span === "string" ? span : "");
    if (typeof span === "string") {
      to.reportValidity();
      return;
    }
    charts.zoomTo(...span);
    if (menu) menu.open = false;
  });
}

/**
 * Shows what is chosen, also after the back button.
 * @param {Chosen} chosen
 */
export function showTools({ span, zoomed, compare, heat, apart }) {
  const out = $("#zoom-out");
  if (out) out.hidden = !zoomed;
  const compared = $("#chart-compare");
  if (compared instanceof HTMLSelectElement) compared.value = compare;
  const requests = $("#chart-requests");
  if (requests instanceof HTMLAnchorElement) requests.search = `?from=${Math.floor(span[0])}&to=${Math.ceil(span[1])}`;
  const map = $("#chart-heat");
  if (!(map instanceof HTMLInputElement)) return;
  map.checked = heat;
  map.disabled = apart;
}
