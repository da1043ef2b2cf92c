// The types of the dashboard's messages over WebSockets (dashboard/metrics/live.py, dashboard/servers/consumers.py).

/**
 * One GPU; null for a value that the driver does not report.
 * @typedef {object} Gpu
 * @property {string} uuid
 * @property {number | null} utilization a share from 0 to 1
 * @property {number | null} memory_used bytes
 * @property {number | null} memory_total bytes
 */

/**
 * The resources of a server's process.
 * @typedef {object} ProcessFigures
 * @property {number} rss resident bytes
 * @property {number} cpu cores in use
 * @property {number} threads
 * @property {Gpu[]} gpus
 */

/**
 * One second of one model or of all models together: rates per second, times in ms, null if nothing was measured.
 * @typedef {object} Figures
 * @property {number} rps requests of clients
 * @property {number} mirrored requests of shadows
 * @property {number | null} p50
 * @property {number | null} p95
 * @property {number | null} p99
 * @property {number} errors
 * @property {number} pending requests that wait
 * @property {Record<string, number>} batch batch size -> executions
 */

/**
 * One second of a server, or of the servers of an environment together, from /ws/live/.
 * @typedef {object} Point
 * @property {"point"} type
 * @property {string} server "" for a sum
 * @property {string[]} [missing] the servers that are not in the sum
 * @property {number} at the time of the server in unix seconds
 * @property {Record<string, Figures>} models the models with requests, or only the model that the page asked for
 * @property {Figures} [total] the figures of all models; missing if the page asked for one model
 * @property {Record<string, Figures>} [versions] the versions with requests of the model that the page asked for
 * @property {Record<string, Figures>} [instances] "version label" -> the figures that are drawn of an instance of the model that the page asked for
 * @property {Record<string, Figures>} [servers] "on NAME" -> the figures that are drawn of a server, in a sum about one model
 * @property {ProcessFigures} process
 * @property {Record<string, number>} memory "model/version" -> bytes; about all models, of the versions that hold more or less than before
 * @property {boolean} [whole] whether `memory` has every version, in a message about all models
 * @property {string[]} [floors] the keys of `memory` whose bytes are a lower bound
 */

/**
 * Lines of a process's log, from /ws/servers/NAME/log/.
 * @typedef {object} LogLines
 * @property {"log"} type
 * @property {boolean} [reset] whether the lines replace all previous lines
 * @property {string[]} lines
 */

/**
 * The messages of /ws/changes/: first the mark of all tables, then the names of changed tables, and heartbeats.
 * @typedef {{ type: "mark", mark: string } | { type: "changed", mark: string, tables: string[] } | { type: "alive" }} ChangeMessage
 */

/**
 * The feed is interrupted, or there is no feed at this address.
 * @typedef {{ type: "lost" | "error", message: string }} Trouble
 */

export {};
