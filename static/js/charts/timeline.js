// Charts of stored readings, such as those of a rollout, from their start to their end or to now, with markers of steps.

import { $, $$ } from "../core/dom.js";
import { messageOf, request } from "../core/request.js";
import { Plot } from "./plot.js";

/**
 * @import { Values } from "./series.js"
 *
 * The readings of a rollout (dashboard/rollouts/pages.py, rollout_chart).
 * @typedef {object} Readings
 * @property {number[]} times unix seconds
 * @property {Record<string, Record<string, Values>>} arms arm -> its series rps, errors, p50 and p99
 * @property {{ at: number, text: string, bad: boolean }[]} steps
 * @property {number | null} [until] the current time in unix seconds, while the rollout is under way
 * @property {string[]} servers the servers with readings
 * @property {string} server the server of these readings; "" for all together
 */

const SHORTEST_S = 20;

/**
 * Returns the series of all arms, with the arm in each name.
 * @param {Readings["arms"]} arms
 * @returns {Record<string, Values>}
 */
export function seriesOf(arms) {
  return Object.fromEntries(
    Object.entries(arms).flatMap(([arm, rows]) => Object.entries(rows).map(([name, row]) => [`${name}@${arm}`, row])),
  );
}

/**
 * Returns the first and the last moment of the charts.
 * @param {Pick<Readings, "times" | "steps" | "until">} readings
 * @returns {[number, number]} unix seconds
 */
export function spanOf({ times, steps, until }) {
  const moments = [...times, ...steps.map(({ at }) => at), ...(until ? [until] : [])];
  if (!moments.length) return [0, SHORTEST_S];
  const [first, last] = [Math.min(...moments), Math.max(...moments)];
  return [first, Math.max(last, first + SHORTEST_S)];
}

export class Timeline {
  #address = "";
  /** @type {Readings | null} */
  #readings = null;
  #asking = false;
  #again = false;
  #server = "";

  /** @param {HTMLElement} section the section of the charts, which is hidden if there are no readings */
  constructor(section) {
    this.section = section;
    const handlers = {
      onZoom: () => this.#draw(),
      onZoomOut: () => this.#draw(),
      onPointer: (/** @type {number | null} */ at) => this.plots.forEach((plot) => plot.showValues(at)),
      onMarker: () => {},
    };
    this.of = $("#arms-of", section);
    $("select", this.of ?? section)?.addEventListener("change", ({ target }) => {
      this.#server = target instanceof HTMLSelectElement ? target.value : "";
      this.load();
    });
    this.plots = $$("[data-chart]", section).map((figure) => new Plot(figure, handlers));
    document.addEventListener("theme", () => this.plots.forEach((plot) => plot.retheme()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plots.forEach((plot) => plot.retheme()));
  }

  /**
   * Shows the readings at an address.
   * @param {string} address the address of the readings; "" for no readings
   */
  follow(address) {
    this.section.hidden = !address;
    if (address === this.#address) return;
    this.#address = address;
    this.#server = "";
    this.#readings = null;
    this.load();
  }

  /** Loads the readings again. A call during a request loads them once more after its answer. */
  async load() {
    if (!this.#address) return;
    if (this.#asking) {
      this.#again = true;
      return;
    }
    this.#asking = true;
    const asked = this.#address;
    try {
      const readings = /** @type {Readings} */ (await request(this.#server ? `${asked}?server=${encodeURIComponent(this.#server)}` : asked));
      if (asked === this.#address) this.#readings = readings;
      this.#name(readings);
      this.#say(true);
      this.#draw();
    } catch (error) {
      this.#say(false);
      const text = messageOf(error);
      if (!this.#readings) this.plots.forEach((plot) => plot.note(text, "degraded", () => this.load()));
    }
    this.#asking = false;
    if (this.#again) {
      this.#again = false;
      this.load();
    }
  }

  /**
   * Shows the choice of servers, if several have readings.
   * @param {Readings} readings
   */
  #name({ servers, server }) {
    if (!this.of) return;
    this.of.hidden = servers.length < 2;
    $("select", this.of)?.replaceChildren(new Option("all servers", "", false, !server), ...servers.map((name) => new Option(name, name, false, name === server)));
  }

  /** @param {boolean} fresh */
  #say(fresh) {
    const note = $("#arms-freshness");
    if (!note) return;
    note.dataset.live = String(fresh);
    note.textContent = fresh ? "up to date" : "the dashboard does not answer";
  }

  #draw() {
    if (!this.#readings) return;
    const { times, arms, steps } = this.#readings;
    const [start, end] = spanOf(this.#readings);
    const markers = steps.map((step, index) => ({ ...step, index, kind: "rollout", address: "" }));
    const view = { start, end, times, series: seriesOf(arms), batches: {}, markers, outages: [] };
    this.plots.forEach((plot) => plot.draw(view));
  }
}
