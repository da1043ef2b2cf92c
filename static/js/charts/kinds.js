// The kinds of charts, with their series.

import { count, latency, rate, share, size } from "../core/format.js";

/**
 * @typedef {[name: string, colour: string, label: string, dash?: "dot"]} ShownSeries
 *
 * @typedef {object} ChartKind
 * @property {"lines" | "area" | "bars" | "stack" | "distribution"} kind the form of the chart
 * @property {(value: number | null) => string} unit writes a value with its unit
 * @property {ShownSeries[]} series
 * @property {ShownSeries[]} [before] the series of an earlier span that are shown with these, on request
 * @property {string} empty the text of an empty chart
 * @property {boolean} [log] whether the axis is logarithmic if the values are far apart
 * @property {boolean} [gaps] whether a second without requests has no value, rather than 0
 * @property {boolean} [process] whether the chart shows the server's process, not its models
 * @property {boolean} [kept] whether the chart shows stored readings, without live points
 * @property {boolean} [binary] whether its bounds are round in KiB, MiB and so on
 * @property {boolean} [whole] whether it counts few things, so that no tick is between two whole numbers
 * @property {boolean} [zeros] whether the chart is drawn even if every value is 0
 * @property {boolean} [known] whether only series with any value are shown
 * @property {string[]} [seldom] the series that are shown only if they have values above 0
 * @property {boolean} [unmarked] whether single points are never marked
 * @property {number} [steadyTop] the fixed bound of the axis
 */

/**
 * Returns the series of a chart that have values to show.
 * @param {ChartKind} kind
 * @param {Record<string, (number | null)[]>} values
 */
export function shownSeries(kind, values) {
  const shown = kind.series.filter(([name]) => !kind.seldom?.includes(name) || values[name]?.some((value) => value));
  return kind.known ? shown.filter(([name]) => values[name]?.some((value) => value !== null)) : shown;
}

const MOST_GPUS = 16;
const COLOURS = ["series-2", "series-queue", "series-3", "marker", "series-1", "line-strong"];

/**
 * Returns the series of one GPU of a server, with dots for its memory.
 * @param {number} number
 * @returns {ShownSeries[]}
 */
function seriesOfGpu(number) {
  const colour = COLOURS[number % COLOURS.length];
  return [[`gpu@${number}`, colour, `GPU ${number} utilisation`], [`gpu_memory@${number}`, colour, `GPU ${number} memory`, "dot"]];
}

const NO_REQUESTS = "No requests in this range";
const NO_MEASUREMENTS = "No measurements in this range";

/** @type {Record<string, ChartKind>} */
export const KINDS = {
  latency: {
    kind: "lines",
    unit: latency,
    series: [["p50", "series-1", "p50"], ["p95", "series-2", "p95"], ["p99", "series-3", "p99"]],
    before: [["p99", "ink-3", "p99", "dot"]],
    log: true,
    gaps: true,
    empty: NO_REQUESTS,
  },
  throughput: {
    kind: "area",
    unit: rate,
    series: [["rps", "series-2", "requests"], ["mirrored", "line-strong", "shadow copies", "dot"]],
    before: [["rps", "ink-3", "requests", "dot"]],
    seldom: ["mirrored"],
    unmarked: true,
    empty: NO_REQUESTS,
  },
  errors: {
    kind: "bars",
    unit: rate,
    series: [
      ["failed_model", "failed", "model failed"],
      ["failed_rejected", "series-queue", "refused"],
      ["failed_other", "series-3", "other"],
      ["cancelled", "line-strong", "client left"],
    ],
    before: [["errors", "ink-3", "failures", "dot"]],
    empty: "No failures in this range",
  },
  phases: {
    kind: "stack",
    unit: latency,
    series: [
      ["queue_ms", "series-queue", "queue"],
      ["input_ms", "series-1", "input"],
      ["infer_ms", "series-compute", "compute"],
      ["output_ms", "series-3", "output"],
    ],
    gaps: true,
    empty: NO_REQUESTS,
  },
  pending: {
    kind: "area",
    unit: count,
    series: [["pending", "series-2", "pending"]],
    before: [["pending", "ink-3", "pending", "dot"]],
    empty: "Nothing waited in this range",
  },
  cache: {
    kind: "lines",
    unit: share,
    series: [["cache_share", "series-2", "answered from the cache"]],
    steadyTop: 1,
    gaps: true,
    empty: "No requests asked the cache in this range",
  },
  memory: {
    kind: "area",
    unit: size,
    series: [["rss", "series-2", "resident"]],
    before: [["rss", "ink-3", "resident", "dot"]],
    binary: true,
    process: true,
    zeros: true,
    empty: NO_MEASUREMENTS,
  },
  cpu: { kind: "area", unit: count, series: [["cpu", "series-2", "in use"]], process: true, empty: NO_MEASUREMENTS },
  gpu: {
    kind: "lines",
    unit: share,
    series: [...Array(MOST_GPUS).keys()].flatMap(seriesOfGpu),
    known: true,
    process: true,
    steadyTop: 1,
    empty: NO_MEASUREMENTS,
  },
  arms_latency: {
    kind: "lines",
    unit: latency,
    series: [["p99@stable", "series-queue", "stable", "dot"], ["p99@candidate", "series-2", "candidate"]],
    log: true,
    gaps: true,
    kept: true,
    empty: NO_REQUESTS,
  },
  arms_throughput: {
    kind: "lines",
    unit: rate,
    series: [["rps@stable", "series-queue", "stable", "dot"], ["rps@candidate", "series-2", "candidate"]],
    kept: true,
    empty: NO_REQUESTS,
  },
  arms_errors: {
    kind: "lines",
    unit: rate,
    series: [["errors@stable", "series-queue", "stable", "dot"], ["errors@candidate", "failed", "candidate"]],
    kept: true,
    empty: "No failures so far",
  },
  replicas: {
    kind: "lines",
    unit: count,
    series: [["replicas@wanted", "series-queue", "wanted", "dot"], ["replicas@ready", "series-2", "ready"]],
    whole: true,
    zeros: true,
    unmarked: true,
    kept: true,
    empty: "No replicas seen in this time",
  },
  batches: {
    kind: "distribution",
    unit: count,
    series: [["batches", "series-2", "executions"]],
    empty: "No batches in this range",
  },
};

/** Series of each version -> the value of a second without requests. */
export const VERSION_SERIES = new Map(/** @type {[string, number | null][]} */ ([["p50", null], ["p99", null], ["rps", 0], ["errors", 0]]));

/**
 * Returns the name under which a series of one version is kept.
 * @param {string} series
 * @param {string} version
 */
export function ofVersion(series, version) {
  return `${series}@${version}`;
}

// The version of requests that found no ready version (dashboard/metrics/feed.py): all of them are errors.
const NO_VERSION = "0";

/**
 * Returns a kind of chart with lines for each version, or the unchanged kind if the chart cannot show versions separately.
 * @param {string} name the name of a kind
 * @param {string[]} all versions, instances, or servers as "on NAME"
 * @returns {ChartKind}
 */
export function kindByVersion(name, all) {
  const kind = KINDS[name];
  const versions = all.filter((version) => version !== NO_VERSION);
  /** @type {(series: string, what: string, dash?: "dot") => ShownSeries[]} */
  const each = (series, what, dash) =>
    versions.map((version, index) => {
      const colour = COLOURS[index % COLOURS.length];
      return [ofVersion(series, version), colour, `${/^\d/.test(version) ? "version " : ""}${version}${what}`, dash];
    });
  /** @type {ShownSeries[]} */
  const unserved = all.includes(NO_VERSION) ? [[ofVersion("errors", NO_VERSION), "failed", "none served"]] : [];
  if (name === "latency") return { ...kind, series: [...each("p50", " p50", "dot"), ...each("p99", " p99")] };
  if (name === "throughput") return { ...kind, kind: "lines", series: [...each("rps", ""), ...kind.series.slice(1)] };
  return name === "errors" ? { ...kind, series: [...each("errors", ""), ...unserved] } : kind;
}

const OVER_TIME = Object.values(KINDS).filter(({ kind, kept }) => kind !== "distribution" && !kept);

/** Series of models -> the value of a second without requests. */
export const MODEL_SERIES = new Map(
  OVER_TIME.filter(({ process }) => !process).flatMap(({ series, gaps }) =>
    series.map(([name]) => /** @type {[string, number | null]} */ ([name, gaps ? null : 0])),
  ),
);

/** Series of the server's process. */
export const PROCESS_SERIES = OVER_TIME.filter(({ process }) => process).flatMap(({ series }) => series.map(([name]) => name));
