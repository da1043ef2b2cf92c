// A request on the wire: JSON, and behind it the binary data that JSON cannot carry.

import assert from "node:assert/strict";
import test from "node:test";

import { encode, readable, requestBody } from "../../../static/js/playground/wire.js";

const NUMBERS = { name: "x", datatype: "FP32", shape: [1, 2], data: [1.5, -2] };
const PICTURE = { name: "image", datatype: "BYTES", shape: [1], bytes: new Uint8Array([137, 80, 78, 71]) };

test("numbers travel as JSON alone", () => {
  const { content, headers, binaryLength } = encode([NUMBERS]);
  assert.deepEqual(JSON.parse(new TextDecoder().decode(content)), { inputs: [NUMBERS] });
  assert.deepEqual(headers, { "Content-Type": "application/json" });
  assert.equal(binaryLength, 0);
});

test("parameters stand beside the inputs, and only where there are some", () => {
  assert.deepEqual(requestBody([NUMBERS], { sequence_id: 7 }).json.parameters, { sequence_id: 7 });
  assert.ok(!("parameters" in requestBody([NUMBERS], {}).json));
});

test("bytes stand behind the JSON, after their length in little endian", async () => {
  const { content, headers, binaryLength } = encode([NUMBERS, PICTURE]);
  const sent = new Uint8Array(await content.arrayBuffer());
  const head = Number(headers["Inference-Header-Content-Length"]);
  const { inputs } = JSON.parse(new TextDecoder().decode(sent.slice(0, head)));
  assert.deepEqual(inputs[1], { name: "image", datatype: "BYTES", shape: [1], parameters: { binary_data_size: 8 } });
  assert.deepEqual([...sent.slice(head)], [4, 0, 0, 0, 137, 80, 78, 71]);
  assert.equal(binaryLength, 8);
  assert.equal(headers["Content-Type"], "application/octet-stream");
});

test("the header counts bytes, not characters", () => {
  const { headers } = encode([{ ...PICTURE, name: "größe" }]);
  const { json } = requestBody([{ ...PICTURE, name: "größe" }]);
  assert.equal(Number(headers["Inference-Header-Content-Length"]), JSON.stringify(json).length + 2);
});

test("inputs with bytes follow one another in the order of the inputs", async () => {
  const second = { ...PICTURE, name: "second", bytes: new Uint8Array([9]) };
  const { content, headers } = encode([PICTURE, second]);
  const sent = new Uint8Array(await content.arrayBuffer()).slice(Number(headers["Inference-Header-Content-Length"]));
  assert.deepEqual([...sent], [4, 0, 0, 0, 137, 80, 78, 71, 1, 0, 0, 0, 9]);
});

test("lists of numbers are written on one line for reading", () => {
  assert.ok(readable({ data: [1, 2.5, -3e-7] }).includes('"data": [1, 2.5, -3e-7]'));
});

test("a nested list keeps a line for each row", () => {
  assert.equal(readable([[1, 2], [3, 4]]), "[\n  [1, 2],\n  [3, 4]\n]");
});

test("what is long is cut, and says by how much", () => {
  const text = readable("x".repeat(100), 42);
  assert.equal(text, `"${"x".repeat(41)}\n… 60 more characters`);
});
