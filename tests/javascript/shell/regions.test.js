// When a region of a page asks again.

import assert from "node:assert/strict";
import test from "node:test";

import { isDue, markOld, pauseAfter } from "../../../static/js/shell/regions.js";

const region = (more) => ({ reads: new Set(["dashboard_job"]), old: false, asking: false, asked: 0, pause: 1000, ...more });

test("while changes are told, a region whose tables stay as they are is not asked", () => {
  assert.equal(isDue(region(), 60_000, true), false);
  assert.equal(isDue(region(), 10_000_000, true), true);
});

test("a region of which a table changed is asked at once, others are not", () => {
  const [jobs, models, unknown] = [region(), region({ reads: new Set(["dashboard_model"]) }), region({ reads: null })];
  markOld([jobs, models, unknown], ["dashboard_job"]);
  assert.deepEqual([jobs, models, unknown].map((one) => isDue(one, 2000, true)), [true, false, true]);
});

test("what changed between a page and its socket, nobody knows: all are asked", () => {
  const [jobs, models] = [region(), region({ reads: new Set(["dashboard_model"]) })];
  markOld([jobs, models], null);
  assert.ok(isDue(jobs, 2000, true) && isDue(models, 2000, true));
});

test("a region is not asked while it asks, nor before its pause is over", () => {
  assert.equal(isDue(region({ old: true, asking: true }), 60_000, true), false);
  assert.equal(isDue(region({ old: true, pause: 5000 }), 4000, true), false);
  assert.equal(isDue(region({ old: true, pause: 5000 }), 5000, true), true);
});

test("a dashboard that answers slowly is asked less often, within reason", () => {
  assert.deepEqual([20, 1000, 60_000].map(pauseAfter), [1000, 5000, 10_000]);
});

test("what shows the figures of the past is asked once a minute", () => {
  const busiest = region({ reads: new Set(["dashboard_metricsample"]) });
  assert.deepEqual([59_000, 60_000].map((now) => isDue(busiest, now, true)), [false, true]);
  assert.equal(isDue(busiest, 60_000, true, true), false, "figures that the live feed writes are not asked for");
});

test("without a socket everything is asked every ten seconds", () => {
  assert.deepEqual([9000, 10_000].map((now) => isDue(region(), now, false)), [false, true]);
});
