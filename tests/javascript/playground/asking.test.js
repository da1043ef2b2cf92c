// The playground waits while a model is loaded, but not for the last of several servers.

import assert from "node:assert/strict";
import http from "node:http";
import test from "node:test";

import { waitUntilLoaded } from "../../../static/js/playground/asking.js";

/**
 * Returns the last summary, and how many were asked for, of a dashboard that gives these one after another.
 * @param {object[]} summaries
 */
async function waited(summaries) {
  let asked = 0;
  const server = http.createServer((_, response) => {
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify(summaries[asked++]));
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", () => listening(null)));
  const { port } = /** @type {import("node:net").AddressInfo} */ (server.address());
  const last = await waitUntilLoaded(`http://127.0.0.1:${port}/`);
  server.closeAllConnections();
  server.close();
  return { last, asked };
}

test("it waits until the only server serves the model", async () => {
  const ready = { state: "ready", serving_servers: 1, servers: 1 };
  const { last, asked } = await waited([{ state: "loading", serving_servers: 0, servers: 1 }, ready]);
  assert.deepEqual([last, asked], [ready, 2]);
});

test("it does not wait for the last of several servers", async () => {
  const some = { state: "loading", serving_servers: 2, servers: 3 };
  const { last, asked } = await waited([{ state: "loading", serving_servers: 0, servers: 3 }, some]);
  assert.deepEqual([last, asked], [some, 2]);
});
