// The signs of marks on charts. A kind that is not in the table gets the sign of a change, or of a failure.

/** Kind of a mark (dashboard/metrics/marks.py) -> its sign. @type {Record<string, string>} */
const SIGNS = { release: "▼", rollout: "◆", alert: "!", started: "↻", restarted: "↻" };

/**
 * Returns the sign of a mark.
 * @param {{ kind: string, bad: boolean }} marker
 */
export function signOf({ kind, bad }) {
  return bad ? "✕" : (SIGNS[kind] ?? "▼");
}
