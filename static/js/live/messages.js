// What the dashboard sends over WebSockets (dashboard/metrics/live.py, dashboard/servers/consumers.py): the types alone.

/**
 * One GPU; what the driver does not tell is null.
 * @typedef {object} Gpu
 * @property {string} uuid
 * @property {number | null} utilization from 0 to 1
 * @property {number | null} memory_used bytes
 * @property {number | null} memory_total bytes
 */

/**
 * What a server's process uses.
 * @typedef {object} ProcessFigures
 * @property {number} rss resident bytes
 * @property {number} cpu cores in use
 * @property {number} threads
 * @property {Gpu[]} gpus
 */

/**
 * One second of a model, or of all (dashboard's figures): rates per second, times in ms, null where nothing was measured.
 * @typedef {object} Figures
 * @property {number} rps requests of clients
 * @property {number} mirrored what was asked in a shadow
 * @property {number | null} p50
 * @property {number | null} p95
 * @property {number | null} p99
 * @property {number} errors
 * @property {number} pending requests that wait
 * @property {Record<string, number>} batch batch size -> executions
 */

/**
 * One second of a server, from /ws/live/.
 * @typedef {object} Point
 * @property {"point"} type
 * @property {string} server
 * @property {number} at unix seconds, of the server
 * @property {Record<string, Figures>} models only those that did something, or the one that was asked for
 * @property {Figures} [total] of all models; not where one model was asked for
 * @property {Record<string, Figures>} [versions] of the model that was asked for, by version: those that did something
 * @property {ProcessFigures} process
 * @property {Record<string, number>} memory "model/version" -> bytes that it holds
 * @property {string[]} [floors] those of them that hold more than that, which was not measured
 */

/**
 * Lines of a process's log, from /ws/servers/NAME/log/.
 * @typedef {object} LogLines
 * @property {"log"} type
 * @property {boolean} [reset] whether the lines stand in place of all before
 * @property {string[]} lines
 */

/**
 * The first message of /ws/changes/ and those that follow: the mark of all tables, which changed, and signs of life.
 * @typedef {{ type: "mark", mark: string } | { type: "changed", mark: string, tables: string[] } | { type: "alive" }} ChangeMessage
 */

/**
 * The feed is gone for now, or what was asked for does not exist.
 * @typedef {{ type: "lost" | "error", message: string }} Trouble
 */

export {};
