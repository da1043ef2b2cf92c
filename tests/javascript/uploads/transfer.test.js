// An upload in chunks against a server over HTTP: it goes on after pauses, lost connections and answers that got lost.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import test, { afterEach, beforeEach } from "node:test";

import { Transfer } from "../../../static/js/uploads/transfer.js";

const MIB = 1024 * 1024;

// Node has no page: what the transfer and its requests take of one.
const page = new EventTarget();
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.document = { body: { dataset: { csrf: "a token" } } };

/** A server that keeps files as the dashboard does; `respond` can answer a chunk otherwise. */
let server, address, stored, chunks, respond;

beforeEach(async () => {
  stored = [];
  chunks = [];
  respond = () => false;
  server = createServer(async (request, response) => {
    const url = new URL(request.url, "http://localhost");
    const parts = [];
    for await (const part of request) parts.push(part);
    const bytes = Buffer.concat(parts);
    const say = (status, body) => response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(body));
    if (request.method === "GET") return say(200, { files: stored.map((file, number) => ({ number, received: file.length })) });
    const chunk = { number: Number(url.pathname.split("/").at(-1)), offset: Number(url.searchParams.get("offset")), bytes };
    chunks.push({ ...chunk, headers: request.headers });
    if (respond(chunk, say, response)) return undefined;
    const file = (stored[chunk.number] ??= Buffer.alloc(0));
    if (chunk.offset !== file.length) return say(409, { error: { message: "wrong offset" }, received: file.length });
    stored[chunk.number] = Buffer.concat([file, bytes]);
    return say(200, { received: stored[chunk.number].length });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  address = `http://127.0.0.1:${server.address().port}/uploads/1`;
});

afterEach(() => {
  server.closeAllConnections();
  server.close();
});

/** Returns the row of a file whose bytes are its number and their place. */
function row(number, size, received = 0) {
  const bytes = Uint8Array.from({ length: size }, (_, index) => (index * 31 + number) % 251);
  return { number, path: `${number}.bin`, size, received, file: new Blob([bytes]), bytes };
}

/** Sends rows; `onChange` is called with the transfer. Returns the states it went through. */
async function send(rows, onChange = () => {}) {
  const states = [];
  const transfer = new Transfer(address, rows, (one) => {
    if (states.at(-1) !== one.state) states.push(one.state);
    onChange(one);
  });
  await transfer.run();
  return states;
}

test("files arrive whole, one after another, in chunks with their hashes", async () => {
  const rows = [row(0, 9 * MIB), row(1, 10)];
  assert.deepEqual(await send(rows), ["sending", "done"]);
  assert.deepEqual(chunks.map(({ number, offset }) => [number, offset]), [[0, 0], [0, 4 * MIB], [0, 8 * MIB], [1, 0]]);
  for (const { number, bytes } of rows) assert.ok(stored[number].equals(Buffer.from(bytes)));
  for (const { bytes, headers } of chunks) {
    assert.equal(headers["x-sha256"], createHash("sha256").update(bytes).digest("hex"));
    assert.equal(headers["x-csrftoken"], "a token");
  }
});

test("an empty file needs no chunk", async () => {
  await send([row(0, 0)]);
  assert.deepEqual(chunks, []);
});

test("an upload that was left goes on where the server stands", async () => {
  const file = row(0, 100, 60);
  stored[0] = Buffer.from(file.bytes.slice(0, 60));
  await send([file]);
  assert.deepEqual(chunks.map(({ offset }) => offset), [60]);
  assert.ok(stored[0].equals(Buffer.from(file.bytes)));
});

test("an answer that got lost is not sent twice", async () => {
  const file = row(0, 5 * MIB);
  respond = ({ bytes, offset }, _, response) => {
    if (stored[0]) return false;
    stored[0] = bytes;
    response.destroy();
    return offset === 0;
  };
  const states = await send([file], () => page.dispatchEvent(new Event("online")));
  assert.deepEqual(states, ["waiting", "sending", "done"]);
  assert.ok(stored[0].equals(Buffer.from(file.bytes)));
});

test("a wrong offset without the right one is asked for", async () => {
  const file = row(0, 50, 20);
  stored[0] = Buffer.from(file.bytes.slice(0, 30));
  respond = ({ offset }, say) => (offset === 20 ? say(409, { error: "wrong offset" }) : false);
  await send([file]);
  assert.deepEqual(chunks.map(({ offset }) => offset), [20, 30]);
  assert.ok(stored[0].equals(Buffer.from(file.bytes)));
});

test("what the server has no room for just now is tried again", async () => {
  let failures = 1;
  respond = (_, say) => (failures-- > 0 ? say(503, { detail: "Later." }) : false);
  const states = await send([row(0, 10)]);
  assert.deepEqual(states, ["waiting", "sending", "done"]);
});

test("what waiting does not mend ends the transfer with the server's sentence", async () => {
  respond = (_, say) => say(403, { error: { message: "The upload is not yours." } });
  await assert.rejects(send([row(0, 10)]), { message: "The upload is not yours.", status: 403 });
});

test("a pause gives up the chunk on its way, and nothing is sent before it is resumed", async () => {
  const file = row(0, 10);
  let transfer;
  const arrived = new Promise((resolve) => {
    respond = (_, say, response) => {
      if (chunks.length > 1) return false;
      response.on("close", resolve); // the browser hung up
      transfer.pause();
      return true;
    };
  });
  transfer = new Transfer(address, [file], () => {});
  const done = transfer.run();
  await arrived;
  assert.equal(transfer.state, "paused");
  assert.equal(chunks.length, 1);
  transfer.resume();
  await done;
  assert.equal(transfer.state, "done");
  assert.deepEqual(chunks.map(({ offset }) => offset), [0, 0]);
});

test("its progress is the sum of its files, its speed is known from the second chunk on", async () => {
  const seen = [];
  const rows = [row(0, 5 * MIB), row(1, 3)];
  await send(rows, ({ received, total, speed }) => seen.push({ received, total, known: speed !== null && speed > 0 }));
  assert.deepEqual(seen.map(({ received }) => received), [4 * MIB, 5 * MIB, 5 * MIB + 3, 5 * MIB + 3]);
  assert.ok(seen.every(({ total }) => total === 5 * MIB + 3));
  assert.deepEqual(seen.map(({ known }) => known), [false, true, true, true]);
});
