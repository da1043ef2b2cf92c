// Charts of what was kept of a rollout: which series there are, and what part of time is shown.

import assert from "node:assert/strict";
import test from "node:test";

import { seriesOf, spanOf } from "../../../static/js/charts/timeline.js";

test("the series of an arm are named by it", () => {
  const arms = { stable: { p99: [1, 2], rps: [3, 4] }, candidate: { p99: [null, 9] } };
  assert.deepEqual(seriesOf(arms), { "p99@stable": [1, 2], "rps@stable": [3, 4], "p99@candidate": [null, 9] });
});

test("readings and steps are shown from the first to the last", () => {
  const steps = [{ at: 90, text: "started", bad: false }, { at: 400, text: "rolled back", bad: true }];
  assert.deepEqual(spanOf({ times: [100, 300], steps }), [90, 400]);
});

test("what has just begun has some seconds of room, and nothing at all too", () => {
  assert.deepEqual(spanOf({ times: [], steps: [{ at: 90, text: "started", bad: false }] }), [90, 110]);
  assert.deepEqual(spanOf({ times: [], steps: [] }), [0, 20]);
});
