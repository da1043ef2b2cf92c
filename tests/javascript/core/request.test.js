// Requests to the dashboard, against a server: JSON both ways, and failures as sentences.

import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import test, { after, before } from "node:test";

import { RequestError, request, sentence } from "../../../static/js/core/request.js";

globalThis.document = { body: { dataset: { csrf: "a token" } } }; // Node has no page

let server, address;

before(async () => {
  server = createServer(async (asked, response) => {
    const parts = [];
    for await (const part of asked) parts.push(part);
    const say = (status, text) => response.writeHead(status, { "Content-Type": "application/json" }).end(text);
    if (asked.url === "/echo") {
      const { "content-type": type, "x-csrftoken": token, accept } = asked.headers;
      say(200, JSON.stringify({ method: asked.method, type, token, accept, body: Buffer.concat(parts).toString() }));
    } else if (asked.url === "/nothing") response.writeHead(204).end();
    else if (asked.url === "/refused") say(409, JSON.stringify({ error: { message: "It is there already." }, received: 7 }));
    else if (asked.url === "/broken") say(502, "<h1>Bad Gateway</h1>");
    // "/never" is never answered
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  address = `http://127.0.0.1:${server.address().port}`;
});

after(() => {
  server.closeAllConnections();
  server.close();
});

test("a question changes nothing and needs no token", async () => {
  const { method, token, accept } = await request(`${address}/echo`);
  assert.deepEqual([method, token, accept], ["GET", undefined, "application/json"]);
});

test("JSON is sent with its type and the token", async () => {
  const said = await request(`${address}/echo`, { method: "POST", json: { a: 1 } });
  assert.deepEqual([said.type, said.token, said.body], ["application/json", "a token", '{"a":1}']);
});

test("bytes are sent as they are", async () => {
  const headers = { "Content-Type": "application/octet-stream" };
  const said = await request(`${address}/echo`, { method: "PUT", body: new Uint8Array([65, 66]), headers });
  assert.deepEqual([said.type, said.body], ["application/octet-stream", "AB"]);
});

test("an answer without content is null", async () => {
  assert.equal(await request(`${address}/nothing`, { method: "POST", json: {} }), null);
});

test("a refusal is thrown with the server's sentence, its status and its body", async () => {
  const body = { error: { message: "It is there already." }, received: 7 };
  await assert.rejects(request(`${address}/refused`), (error) => {
    assert.ok(error instanceof RequestError);
    assert.deepEqual([error.message, error.status, error.body, error.offline], ["It is there already.", 409, body, false]);
    return true;
  });
});

test("an answer that is not JSON says its status and what to do", async () => {
  const message = "The dashboard answered 502. Try again, and look at the server's log if it stays.";
  await assert.rejects(request(`${address}/broken`), { message, status: 502, body: null });
});

test("a dashboard that does not answer at all is offline", async () => {
  const message = "The dashboard does not answer. It is tried again by itself.";
  await assert.rejects(request("http://127.0.0.1:1/"), { message, offline: true });
});

test("a request that is given up says so and nothing else", async () => {
  const controller = new AbortController();
  const asked = request(`${address}/never`, { signal: controller.signal });
  controller.abort();
  await assert.rejects(asked, { name: "AbortError" });
});

test("a sentence is found wherever an answer has it", () => {
  const bodies = [{ error: { message: "It." } }, { error: "It." }, { detail: "It." }, { message: "It." }];
  assert.deepEqual(bodies.map((body) => sentence(400, body)), Array(4).fill("It."));
});

test("without a sentence, 403 says what is likely", () => {
  for (const body of [null, {}, { detail: ["a list"] }]) assert.match(sentence(403, body), /sign in/);
});
