// The charts of a page: one time axis and one crosshair for all charts, history by request, live points by WebSocket.

import { $, $$, data, el } from "../core/dom.js";
import { ago } from "../core/format.js";
import { messageOf, request } from "../core/request.js";
import { ReconnectingSocket, showFreshness } from "../live/socket.js";
import { momentText } from "./axes.js";
import { Plot } from "./plot.js";
import { SeriesStore, nearest, rowOf } from "./series.js";
import { MOVE_KEYS, SHORTEST_S, moved } from "./span.js";
import { listenToTools, showTools } from "./tools.js";

/**
 * @import { Figures, Point } from "../live/messages.js"
 * @import { History } from "./series.js"
 * @import { Move, Span } from "./span.js"
 * @import { Before, Heatmap, Marker, Outage } from "./traces.js"
 */

/**
 * The page's configuration (dashboard/overview/tags.py, charts_config).
 * @typedef {object} BoardConfig
 * @property {string} history the address of the history
 * @property {string} live the path of the WebSocket
 * @property {string} model the name of the model; "" for all models
 * @property {string} server the name of a server; "" for all servers of the environment together
 * @property {string} environment the name of an environment; "" for production, or if there is a server
 * @property {Range} range
 * @property {[string, string] | null} zoom two moments in unix seconds
 * @property {string} compare a key of EARLIER, or "" for no comparison
 * @property {string} heat "yes" for a heat map of latency, "no" for lines, "" for a heat map of long ranges
 * @property {string} version EACH, INSTANCES or SERVERS for a line for each version, instance or server, a number for one version, "" for all
 *   versions together
 *
 * @typedef {"15m" | "1h" | "6h" | "24h" | "7d" | "30d"} Range a span of time that ends now
 *
 * @typedef {object} HistoryAnswer
 * @property {History | null} range the history of the range; null if there is no server
 * @property {Omit<Marker, "index">[]} markers
 * @property {Outage[]} outages
 * @property {Heatmap} [heatmap]
 * @property {Omit<Before, "label">} [before] the earlier span, if the charts are compared with one
 * @property {number} now the time of the dashboard in unix seconds
 *
 * @typedef {object} BoardHandlers
 * @property {(message: Point) => Figures | undefined} pick returns the figures of a live point
 *   that belong to the page, for all versions together
 * @property {(message: Point) => void} onPoint called with each live point
 */

/** @type {Record<Range, number>} */
const SPANS = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000 };
const EACH = "each";
const INSTANCES = "instances";
const SERVERS = "servers";
/** The spans with which the charts can be compared, and their words. @type {Record<string, string>} */
const EARLIER = { day: "a day before", week: "a week before" };
const LISTED_MARKERS = 6;
const LONGEST_LIVE_STEP_S = 2;
const RELOAD_AFTER_S = 10;
// The tables of markers. They are loaded again after a change, and from time to time in case a change is not announced.
const MARKED_TABLES = ["dashboard_auditentry", "dashboard_serverevent", "dashboard_releasespan", "dashboard_rollout"];
const MARKS_AFTER_S = 60;
const KEPT_BEFORE_S = 60;

/**
 * Says whether a text names a range.
 * @param {string | null | undefined} text
 * @returns {text is Range}
 */
function isRange(text) {
  return text !== null && text !== undefined && Object.hasOwn(SPANS, text);
}

export class Board {
  #store = SeriesStore.empty();
  /** @type {Marker[]} */
  #markers = [];
  /** @type {Outage[]} */
  #outages = [];
  /** The versions or instances that have lines of their own, in order. @type {string[]} */
  #versions = [];
  /** @type {Heatmap | undefined} */
  #heatmap;
  /** @type {Before | undefined} */
  #before;
  /** The time of the crosshair that keys move; null if there is none. @type {number | null} */
  #at = null;
  /** Seconds that the server's clock is ahead of the browser's. */
  #clockOffset = 0;
  /** The newest request for history: a late answer to an older request is dropped. */
  #asked = Symbol("load");
  /** The time of the last request for history in unix milliseconds (0 for none), and whether there was ever an answer. */
  #triedAt = 0;
  #loaded = false;
  /** The time of the last request for only markers and outages. */
  #marksAt = Date.now();
  #marksOld = false;
  /** Whether a point arrived since the last drawing, and whether a person uses the crosshair. */
  #fresh = false;
  #reading = false;

  /** @param {BoardHandlers} handlers */
  constructor({ pick, onPoint }) {
    this.config = /** @type {BoardConfig} */ (data("charts-config"));
    this.pick = pick;
    this.onPoint = onPoint;
    this.range = this.config.range;
    const [from, to] = this.config.zoom ?? [];
    /** @type {Span | null} */
    this.zoom = from === undefined ? null : [Number(from), Number(to)];
    this.version = this.config.version;
    this.compare = this.config.compare;
    this.heat = this.config.heat;
    const handlers = {
      onZoom: (/** @type {number} */ start, /** @type {number} */ end) => this.zoomTo(start, end),
      onZoomOut: () => this.zoomOut(),
      onPointer: (/** @type {number | null} */ at) => this.#pointAt(at),
      onMarker: (/** @type {number} */ index) => (location.href = this.#markers[index].address),
      onKey: (/** @type {KeyboardEvent} */ event) => this.#onKey(event),
    };
    this.plots = $$("[data-chart]").map((figure) => new Plot(figure, handlers));
    this.#listen();
    this.#load();
    const { model, server, environment } = this.config;
    const query = new URLSearchParams(Object.entries({ model, server, environment }).filter(([, value]) => value));
    /** @type {ReconnectingSocket<Point>} */
    this.live = new ReconnectingSocket(`${this.config.live}${query.size ? `?${query}` : ""}`, {
      onMessage: (message) => this.#take(message),
      onFresh: showFreshness,
    });
    setInterval(() => this.#tick(), 1000);
  }

  /** Whether each version, instance or server has lines of its own. */
  get #apart() {
    return [EACH, INSTANCES, SERVERS].includes(this.version);
  }

  /**
   * Returns the figures of a live point that have lines of their own.
   * @param {Point} message
   */
  #parts({ versions, instances, servers }) {
    return (this.version === EACH ? versions : this.version === INSTANCES ? instances : servers) ?? {};
  }

  /** The server's time in unix seconds. */
  get now() {
    return Date.now() / 1000 + this.#clockOffset;
  }

  /**
   * The shown span of time.
   * @returns {Span}
   */
  get window() {
    return this.zoom ?? [this.now - SPANS[this.range], this.now];
  }

  /**
   * Shows the span between two moments, unless it is too short.
   * @param {number} from unix seconds
   * @param {number} to unix seconds
   */
  zoomTo(from, to) {
    if (to - from < SHORTEST_S) return;
    this.zoom = [Math.floor(from), Math.ceil(to)];
    this.#changed();
  }

  /** Shows the range again. */
  zoomOut() {
    if (!this.zoom) return;
    this.zoom = null;
    this.#changed();
  }

  /**
   * Shows a span that is half a span earlier or later, half as long or twice as long.
   * @param {Move} move
   */
  move(move) {
    this.zoomTo(...moved(this.window, move, this.now, this.#at ?? undefined));
  }

  /**
   * Shows an earlier span, a heat map, or both, or no longer shows them.
   * @param {{ compare?: string, heat?: string }} choice as in BoardConfig
   */
  choose({ compare = this.compare, heat = this.heat }) {
    this.compare = compare;
    this.heat = heat;
    this.#changed();
  }

  /**
   * Shows another range.
   * @param {Range} range
   */
  setRange(range) {
    this.range = range;
    this.zoom = null;
    this.#changed();
  }

  // -- history and live points ---------------------------------------------------------------------------------------

  async #load() {
    const asked = (this.#asked = Symbol("load"));
    try {
      const answer = /** @type {HistoryAnswer} */ (await request(this.#history()));
      if (asked === this.#asked) this.#fill(answer);
    } catch (error) {
      const text = messageOf(error);
      const missing = asked === this.#asked && !this.#loaded;
      if (missing) this.plots.forEach((plot) => plot.note(text, "degraded", () => this.#load()));
    }
    this.#triedAt = this.#marksAt = Date.now();
  }

  /** Loads markers and outages again, because the live feed brings only points. */
  async #loadMarks() {
    const asked = this.#asked;
    this.#marksAt = Date.now();
    this.#marksOld = false;
    const answer = /** @type {HistoryAnswer | null} */ (await request(`${this.#history()}&part=marks`).catch(() => null));
    if (answer && asked === this.#asked) this.#mark(answer);
  }

  /** Returns the address of the history of the shown span. */
  #history() {
    const [start, end] = this.window.map(String);
    const { model, server, environment } = this.config;
    const { version, compare, heat } = this;
    return `${this.config.history}?${new URLSearchParams({ model, server, environment, start, end, version, compare, heat })}`;
  }

  /** @param {Pick<HistoryAnswer, "markers" | "outages">} answer */
  #mark({ markers, outages }) {
    this.#markers = markers.map((marker, index) => ({ ...marker, index }));
    this.#outages = outages;
    this.#listMarkers();
    this.#draw();
  }

  /** @param {HistoryAnswer} answer */
  #fill({ range, markers, outages, heatmap, before, now }) {
    this.#clockOffset = now - Date.now() / 1000;
    this.#loaded = true;
    const later = range?.times.length ? this.#store.after(range.times[range.times.length - 1]) : [];
    this.#store = range ? SeriesStore.of(range) : SeriesStore.empty();
    this.#store.dropUnfinished(this.now);
    later.forEach((row) => this.#store.append(row));
    this.#heatmap = this.#apart ? undefined : heatmap;
    this.#before = before && { ...before, label: EARLIER[this.compare] ?? "" };
    this.#showTools();
    this.#showVersions(Object.keys(range?.versions ?? {}));
    this.#mark({ markers, outages });
  }

  /** @param {string[]} versions */
  #showVersions(versions) {
    this.#versions = versions.sort((one, other) => parseInt(one) - parseInt(other) || one.localeCompare(other));
    this.plots.forEach((plot) => plot.showVersions(this.#versions));
  }

  /**
   * Returns the figures of a live point for the shown version, or for all versions.
   * @param {Point} message
   */
  #figures(message) {
    if (!this.version || this.#apart) return this.pick(message);
    return message.versions?.[this.version];
  }

  /** @param {Point} message */
  #take(message) {
    this.onPoint(message);
    const apart = this.#apart ? this.#parts(message) : {};
    const reported = Object.keys(apart);
    if (this.#loaded && reported.some((version) => !this.#versions.includes(version))) {
      this.#showVersions([...new Set([...this.#versions, ...reported])]);
    }
    const row = rowOf({ ...message, versions: apart }, this.#figures(message), this.#versions);
    if (this.#store.step <= LONGEST_LIVE_STEP_S && row.at > this.#store.newest) this.#store.append(row);
    this.#fresh = true;
  }

  /** Draws new points once a second; loads history again if its steps are too coarse for single points. */
  #tick() {
    const stale = Date.now() - this.#triedAt > Math.max(RELOAD_AFTER_S, this.#store.step) * 1000;
    // Live points bring neither a heat map nor an earlier span.
    const coarse = this.#store.step > LONGEST_LIVE_STEP_S || !this.#loaded || Boolean(this.#heatmap) || Boolean(this.#before);
    if (!this.zoom && coarse && stale && this.#triedAt) this.#load();
    else if (this.#loaded && (this.#marksOld || Date.now() - this.#marksAt > MARKS_AFTER_S * 1000)) this.#loadMarks();
    if (this.#reading || !this.#loaded) return;
    if (!this.zoom && (this.#fresh || coarse)) this.#draw();
    this.#fresh = false;
  }

  #draw() {
    const [start, end] = this.window;
    if (!this.zoom) this.#store.dropBefore(start - KEPT_BEFORE_S);
    const { times, series } = this.#store;
    const markers = this.#markers.filter(({ at }) => at >= start && at <= end);
    const batches = this.#store.batchesBetween(start, end);
    const outages = this.#outages.filter((outage) => outage.end >= start && outage.start <= end);
    const view = { start, end, times, series, batches, heatmap: this.#heatmap, before: this.#before, markers, outages };
    this.plots.forEach((plot) => plot.draw(view));
  }

  /** @param {number | null} at unix seconds */
  #pointAt(at) {
    this.#reading = at !== null;
    this.#at = at;
    this.plots.forEach((plot) => plot.showValues(at));
  }

  // -- the page around the charts ------------------------------------------------------------------------------------

  /** Writes the chosen window into the address, so that the back button returns to the previous window. */
  #changed() {
    const url = new URL(location.href);
    url.searchParams.set("range", this.range);
    if (this.config.model) url.searchParams.set("version", this.version);
    url.searchParams.delete("at");
    this.#write(url, "compare", this.compare);
    this.#write(url, "heat", this.heat);
    if (this.zoom) {
      url.searchParams.set("from", String(this.zoom[0]));
      url.searchParams.set("to", String(this.zoom[1]));
    } else {
      url.searchParams.delete("from");
      url.searchParams.delete("to");
    }
    history.pushState({}, "", url);
    this.#showWindow();
  }

  /**
   * Writes a choice into an address, or removes it if it is the default.
   * @param {URL} url
   * @param {string} name
   * @param {string} value
   */
  #write(url, name, value) {
    if (value) url.searchParams.set(name, value);
    else url.searchParams.delete(name);
  }

  #showWindow() {
    this.#pointAt(null);
    this.#showTools();
    const chosen = $("#chart-versions");
    if (chosen instanceof HTMLSelectElement) chosen.value = this.version;
    this.#load();
  }

  #showTools() {
    for (const link of $$("#ranges [data-range]")) {
      if (link.dataset.range === this.range && !this.zoom) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    const heat = this.heat ? this.heat === "yes" : this.#heatmap !== undefined;
    showTools({ span: this.window, zoomed: this.zoom !== null, compare: this.compare, heat, apart: this.#apart });
  }

  /**
   * Moves the crosshair or the shown span by a key.
   * @param {KeyboardEvent} event
   */
  #onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    const move = MOVE_KEYS[event.key];
    if (step) this.#stepCrosshair(step);
    else if (move) this.move(move);
    else if (event.key === "Escape" && this.#at !== null) this.#pointAt(null);
    else if (event.key === "Escape" && this.zoom) this.zoomOut();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} step points to the right */
  #stepCrosshair(step) {
    const [start, end] = this.window;
    const times = this.#store.times.filter((at) => at >= start && at <= end);
    if (!times.length) return;
    const from = this.#at === null ? (step > 0 ? -1 : times.length) : nearest(times, this.#at);
    this.#pointAt(times[Math.min(times.length - 1, Math.max(0, from + step))]);
  }

  #listen() {
    listenToTools(this);
    $("#ranges")?.addEventListener("click", (event) => {
      const link = event.target instanceof Element ? event.target.closest("[data-range]") : null;
      const range = link?.getAttribute("data-range");
      if (!isRange(range)) return;
      event.preventDefault();
      this.setRange(range);
    });
    document.addEventListener("tables", (event) => {
      const tables = event instanceof CustomEvent ? event.detail : null;
      this.#marksOld ||= !tables || MARKED_TABLES.some((name) => tables.includes(name));
    });
    $("#chart-versions")?.addEventListener("change", ({ target }) => {
      if (!(target instanceof HTMLSelectElement)) return;
      const { from, to } = target.selectedOptions[0]?.dataset ?? {};
      if (from) this.zoomTo(Number(from) - SHORTEST_S, Number(to ?? this.now) + SHORTEST_S);
      else {
        this.version = target.value;
        this.#changed();
      }
    });
    addEventListener("popstate", () => {
      const query = new URLSearchParams(location.search);
      const range = query.get("range");
      this.range = isRange(range) ? range : "15m";
      this.zoom = query.has("from") ? [Number(query.get("from")), Number(query.get("to"))] : null;
      this.version = query.get("version") ?? this.config.version;
      this.compare = query.get("compare") ?? "";
      this.heat = query.get("heat") ?? "";
      this.#showWindow();
    });
    const retheme = () => this.plots.forEach((plot) => plot.retheme());
    document.addEventListener("theme", retheme);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
    this.#showTools();
  }

  #listMarkers() {
    const box = $("#markers");
    if (!box) return;
    const newest = this.#markers.slice(-LISTED_MARKERS).reverse();
    const rows = newest.map((marker) => {
      const ms = marker.at * 1000;
      const time = { datetime: new Date(ms).toISOString(), title: momentText(marker.at), "data-ago": true };
      const link = el("a", { href: marker.address, class: marker.bad ? "bad" : "" }, marker.text || marker.kind);
      return el("li", {}, el("time", time, ago(ms)), link);
    });
    box.replaceChildren(...(rows.length ? [el("ul", {}, ...rows)] : []));
  }
}
