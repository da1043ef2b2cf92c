// A WebSocket that comes back by itself, against a server.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import { createServer } from "node:http";
import test, { after, before } from "node:test";

// Node has no page: what the socket takes of one.
const page = Object.assign(new EventTarget(), { visibilityState: "visible" });
globalThis.addEventListener = page.addEventListener.bind(page);
globalThis.document = page;

const { ReconnectingSocket, freshnessText, retryDelay } = await import("../../../static/js/live/socket.js");

const ACCEPT = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"; // RFC 6455, 1.3
const connections = [];
let server, connected;

before(async () => {
  server = createServer();
  server.on("upgrade", (request, socket) => {
    const key = createHash("sha1").update(request.headers["sec-websocket-key"] + ACCEPT).digest("base64");
    const head = ["HTTP/1.1 101 Switching Protocols", "Upgrade: websocket", "Connection: Upgrade", `Sec-WebSocket-Accept: ${key}`];
    socket.write(`${head.join("\r\n")}\r\n\r\n`);
    connections.push({ socket, url: request.url });
    connected?.(connections.at(-1));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  globalThis.location = { protocol: "http:", host: `127.0.0.1:${server.address().port}` };
});

after(() => {
  for (const { socket } of connections) socket.destroy();
  server.close();
});

/** Resolves with the next connection. */
const nextConnection = () => new Promise((resolve) => (connected = resolve));

/** Sends a message as one text frame; it must be short. */
function say(socket, message) {
  const text = Buffer.from(JSON.stringify(message));
  socket.write(Buffer.concat([Buffer.from([0x81, text.length]), text]));
}

/** Returns a socket, and a function that resolves with its next message, freshness or close. */
function listen() {
  const waiting = {};
  const next = (name) => new Promise((resolve) => (waiting[name] = resolve));
  const told = (name) => (...values) => waiting[name]?.(values);
  const handlers = { onMessage: told("message"), onFresh: told("fresh"), onClose: told("close") };
  return { socket: new ReconnectingSocket("/ws/live/?model=m", handlers), next };
}

test("messages are handed on, but those that say that the feed is lost", async () => {
  const coming = nextConnection();
  const { socket, next } = listen();
  const { socket: peer, url } = await coming;
  assert.equal(url, "/ws/live/?model=m");
  const [message, fresh] = [next("message"), next("fresh")];
  say(peer, { type: "lost", message: "The feed is gone." });
  say(peer, { type: "point", at: 7 });
  assert.deepEqual(await message, [{ type: "point", at: 7 }]);
  assert.deepEqual(await fresh, [true, 0, []]);
  assert.ok(socket.open);
  socket.close();
});

test("a lost connection is said and made again, at once when the network is back", async (context) => {
  const coming = nextConnection();
  const { socket, next } = listen();
  const first = await coming;
  const [closed, again] = [next("close"), nextConnection()];
  context.mock.timers.enable({ apis: ["setTimeout"] }); // it would come back by itself too
  first.socket.destroy();
  await closed;
  assert.ok(!socket.open);
  page.dispatchEvent(new Event("online"));
  const second = await again;
  const message = next("message");
  say(second.socket, { type: "point", at: 8 });
  assert.deepEqual(await message, [{ type: "point", at: 8 }]);
  socket.close();
});

test("a page that is left closes its connection for good", async () => {
  const coming = nextConnection();
  const { socket } = listen();
  const { socket: peer } = await coming;
  page.dispatchEvent(new Event("pagehide"));
  await once(peer, "data"); // the closing frame
  const count = connections.length;
  peer.destroy();
  if (socket.socket.readyState !== WebSocket.CLOSED) await once(socket.socket, "close");
  page.dispatchEvent(new Event("online"));
  assert.equal(connections.length, count);
  assert.ok(!socket.open);
});

test("each further attempt waits twice as long, to a limit", () => {
  assert.deepEqual([1, 2, 3, 4, 20].map(retryDelay), [1000, 2000, 4000, 8000, 8000]);
});

test("a page says how old its numbers are", () => {
  assert.equal(freshnessText(true, 0), "up to date");
  assert.equal(freshnessText(true, 0, ["a", "b", "c", "d"]), "up to date, without a, b, c and 1 more");
  assert.equal(freshnessText(false, null), "connecting");
  assert.equal(freshnessText(false, 12_400), "last update 12 s ago, reconnecting");
});
