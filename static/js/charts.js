// The charts of a page: one time axis and one crosshair for all, history by request, live points by WebSocket.

import { $, $$, data, el, request } from "./dom.js";
import { ago } from "./format.js";
import { momentText } from "./axes.js";
import { Live, showFreshness } from "./live.js";
import { MODEL_SERIES, PROCESS_SERIES, Plot } from "./plot.js";

const SPANS = { "15m": 900, "1h": 3600, "6h": 21600, "24h": 86400, "7d": 604800, "30d": 2592000 };
const BAD_MARKERS = ["crashed", "unreachable"];
const LONGEST_LIVE_STEP = 2;

export class Board {
  /** `pick(message)`: the figures of a live point that belong to this page. `onPoint(message)`: every one. */
  constructor({ pick, onPoint = () => {} }) {
    this.config = data("charts-config");
    this.pick = pick;
    this.onPoint = onPoint;
    this.range = this.config.range;
    this.zoom = this.config.zoom?.map(Number) ?? null;
    this.clockOffset = 0;
    this.store = emptyStore();
    const handlers = {
      onZoom: (from, to) => this.zoomTo(from, to),
      onZoomOut: () => this.zoomOut(),
      onPointer: (at) => this.pointAt(at),
      onMarker: (index) => this.openMarker(this.markers[index]),
    };
    this.plots = $$("[data-chart]").map((figure) => new Plot(figure, handlers));
    this.markers = [];
    this.listen();
    this.load();
    const query = new URLSearchParams(Object.entries({ model: this.config.model, server: this.config.server }).filter(([, value]) => value));
    this.live = new Live(`${this.config.live}${query.size ? `?${query}` : ""}`, {
      onPoint: (message) => this.take(message),
      onFresh: (fresh, age) => showFreshness($("#freshness"), $("#main"), fresh, age),
    });
    setInterval(() => this.tick(), 1000);
  }

  get now() {
    return Date.now() / 1000 + this.clockOffset;
  }

  get window() {
    return this.zoom ?? [this.now - SPANS[this.range], this.now];
  }

  async load() {
    const asked = (this.asked = Symbol("load"));
    const [start, end] = this.window;
    const query = new URLSearchParams({ model: this.config.model, server: this.config.server, start, end });
    try {
      const answer = await request(`${this.config.history}?${query}`);
      if (asked === this.asked) this.fill(answer);
    } catch (error) {
      if (asked === this.asked && !this.loadedAt) this.plots.forEach((plot) => plot.note(error.message, "degraded", () => this.load()));
    }
    this.triedAt = Date.now();
  }

  fill({ range, markers, heatmap, now }) {
    this.clockOffset = now - Date.now() / 1000;
    this.loadedAt = Date.now();
    const waiting = this.store.times.filter((at) => range?.times.length && at > range.times.at(-1));
    const kept = waiting.map((at) => rowAt(this.store, this.store.times.indexOf(at)));
    this.store = range ? { step: range.step, times: range.times, series: { ...range.series, ...range.process, gpu: [], gpu_memory: [] } } : emptyStore();
    this.trimFuture();
    kept.forEach((row) => append(this.store, row));
    this.heatmap = heatmap;
    this.markers = markers.map((marker, index) => ({ ...marker, index, bad: BAD_MARKERS.includes(marker.kind) }));
    this.listMarkers();
    this.draw();
  }

  /** The last step is still going on: it would show as a drop. Live points stand in for it. */
  trimFuture() {
    const { times, series, step } = this.store;
    while (times.length && times.at(-1) + step > this.now) {
      times.pop();
      Object.values(series).forEach((row) => row.length > times.length && row.pop());
    }
  }

  take(message) {
    this.onPoint(message);
    const figures = this.pick(message);
    const row = { at: message.at, batch: figures?.batch, ...pickProcess(message.process) };
    for (const [name, idle] of MODEL_SERIES) row[name] = figures?.[name] ?? idle;
    if (this.store.step <= LONGEST_LIVE_STEP && row.at > (this.store.times.at(-1) ?? 0)) append(this.store, row);
    this.fresh = true;
  }

  /** Once a second: draw what came; fetch anew what is too coarse for single points. */
  tick() {
    const stale = Date.now() - (this.triedAt ?? 0) > Math.max(10, this.store.step) * 1000;
    const coarse = this.store.step > LONGEST_LIVE_STEP || !this.loadedAt;
    if (!this.zoom && coarse && stale && this.triedAt) this.load();
    if (this.reading || !this.loadedAt) return;
    if (!this.zoom && (this.fresh || coarse)) this.draw();
    this.fresh = false;
  }

  draw() {
    const [start, end] = this.window;
    if (!this.zoom) dropBefore(this.store, start - 60);
    const view = { start, end, ...this.store, batches: batchesBetween(this.store, start, end), heatmap: this.heatmap, markers: this.markers.filter(({ at }) => at >= start && at <= end) };
    this.plots.forEach((plot) => plot.draw(view));
  }

  pointAt(at) {
    this.reading = at !== null;
    this.plots.forEach((plot) => plot.showValues(at));
  }

  zoomTo(from, to) {
    if (to - from < 5) return;
    this.zoom = [Math.floor(from), Math.ceil(to)];
    this.remember("push");
    this.changed();
  }

  zoomOut() {
    if (!this.zoom) return;
    this.zoom = null;
    this.remember("push");
    this.changed();
  }

  setRange(range) {
    this.range = range;
    this.zoom = null;
    this.remember("push");
    this.changed();
  }

  changed() {
    this.pointAt(null);
    const out = $("#zoom-out");
    if (out) out.hidden = !this.zoom;
    for (const link of $$("#ranges [data-range]")) {
      if (link.dataset.range === this.range && !this.zoom) link.setAttribute("aria-current", "true");
      else link.removeAttribute("aria-current");
    }
    this.load();
  }

  remember(how) {
    const url = new URL(location.href);
    url.searchParams.set("range", this.range);
    for (const [name, value] of [["from", this.zoom?.[0]], ["to", this.zoom?.[1]]]) {
      if (value === undefined) url.searchParams.delete(name);
      else url.searchParams.set(name, value);
    }
    history[`${how}State`]({}, "", url);
  }

  listen() {
    $("#ranges")?.addEventListener("click", (event) => {
      const link = event.target.closest("[data-range]");
      if (!link) return;
      event.preventDefault();
      this.setRange(link.dataset.range);
    });
    $("#zoom-out")?.addEventListener("click", () => this.zoomOut());
    addEventListener("popstate", () => {
      const query = new URLSearchParams(location.search);
      this.range = SPANS[query.get("range")] ? query.get("range") : "15m";
      this.zoom = query.has("from") ? [Number(query.get("from")), Number(query.get("to"))] : null;
      this.changed();
    });
    const retheme = () => this.plots.forEach((plot) => plot.retheme());
    document.addEventListener("theme", retheme);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", retheme);
    const out = $("#zoom-out");
    if (out) out.hidden = !this.zoom;
  }

  openMarker(marker) {
    location.href = marker.audit ? `${this.config.activity}#entry-${marker.audit}` : "/servers/";
  }

  listMarkers() {
    const box = $("#markers");
    if (!box) return;
    const rows = this.markers.slice(-6).reverse().map((marker) =>
      el("li", {}, el("time", { datetime: new Date(marker.at * 1000).toISOString(), title: momentText(marker.at), "data-ago": true }, ago(marker.at * 1000)),
        el("a", { href: marker.audit ? `${this.config.activity}#entry-${marker.audit}` : "/servers/" }, marker.text || marker.kind)));
    box.replaceChildren(...(rows.length ? [el("ul", {}, ...rows)] : []));
  }
}

function emptyStore() {
  return { step: 1, times: [], series: Object.fromEntries([...MODEL_SERIES.keys(), ...PROCESS_SERIES, "batch"].map((name) => [name, []])) };
}

/** How often each batch size ran in what is shown: what has left the range is not counted any more. */
function batchesBetween({ step, times, series }, start, end) {
  const sums = {};
  times.forEach((at, index) => {
    if (at + step <= start || at > end) return;
    for (const [size, number] of Object.entries(series.batch?.[index] ?? {})) sums[size] = (sums[size] ?? 0) + number;
  });
  return sums;
}

function append(store, row) {
  store.times.push(row.at);
  for (const name of Object.keys(store.series)) {
    const values = store.series[name];
    while (values.length < store.times.length - 1) values.push(null);
    values.push(row[name] ?? null);
  }
}

function rowAt(store, index) {
  return { at: store.times[index], ...Object.fromEntries(Object.entries(store.series).map(([name, row]) => [name, row[index] ?? null])) };
}

function dropBefore(store, moment) {
  const keep = store.times.findIndex((at) => at >= moment);
  if (keep <= 0) return;
  store.times.splice(0, keep);
  Object.values(store.series).forEach((row) => row.splice(0, keep));
}

function pickProcess({ rss, cpu, gpus }) {
  const gpu = gpus?.[0];
  if (!gpu) return { rss, cpu };
  return { rss, cpu, gpu: (gpu.utilization ?? 0) / (gpu.utilization > 1 ? 100 : 1), gpu_memory: gpu.memory_total ? gpu.memory_used / gpu.memory_total : null };
}
