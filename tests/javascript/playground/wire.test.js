// A request on the wire: JSON, and behind it the binary data that JSON cannot carry.

import assert from "node:assert/strict";
import test from "node:test";

import { decode, encode, kept, readable, requestBody, unkept } from "../../../static/js/playground/wire.js";

const NUMBERS = { name: "x", datatype: "FP32", shape: [1, 2], data: [1.5, -2] };
const PICTURE = { name: "image", datatype: "BYTES", shape: [1], data: [new Uint8Array([137, 80, 78, 71])] };

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
  const second = { ...PICTURE, name: "second", data: [new Uint8Array([9])] };
  const { content, headers } = encode([PICTURE, second]);
  const sent = new Uint8Array(await content.arrayBuffer()).slice(Number(headers["Inference-Header-Content-Length"]));
  assert.deepEqual([...sent], [4, 0, 0, 0, 137, 80, 78, 71, 1, 0, 0, 0, 9]);
});

test("lists of numbers are written on one line for reading", () => {
  assert.ok(readable({ data: [1, 2.5, -3e-7] }).includes('"data": [1, 2.5, -3e-7]'));
});

test("what is written for reading is the same value, whatever a text holds", () => {
  for (const text of ["[\n  14.125,\n  -0.75\n]", "[1,  2]", 'a "[ 3,  4 ]" b', "two  spaces", "\\", '\\"[ 5 ]', "x  ".repeat(20), ""]) {
    const value = { [text]: [text, 1], deep: [[text], text] };
    assert.deepEqual(JSON.parse(readable(value)), value);
  }
});

test("a nested list keeps a line for each row", () => {
  assert.equal(readable([[1, 2], [3, 4]]), "[\n  [1, 2],\n  [3, 4]\n]");
});

test("what is long is cut, and says by how much", () => {
  const text = readable("x".repeat(100), 42);
  assert.equal(text, `"${"x".repeat(41)}\n… 60 more characters`);
});

test("many numbers, and those that JSON lacks, travel behind it", () => {
  const sizes = (...inputs) => requestBody(inputs).json.inputs.map(({ parameters }) => parameters?.binary_data_size);
  const many = { ...NUMBERS, shape: [5000], data: new Float32Array(5000) };
  const half = { ...NUMBERS, datatype: "FP16" };
  const whole = { ...NUMBERS, datatype: "INT64", data: [1n, 2n ** 62n] };
  assert.deepEqual(sizes(NUMBERS, many, half, whole, { ...NUMBERS, data: [NaN, 1] }), [undefined, 20000, 4, 16, 8]);
});

test("an answer's outputs are read wherever they stand", () => {
  const rows = [
    { name: "a", datatype: "FP32", shape: [2], parameters: { binary_data_size: 8 } },
    { name: "b", datatype: "INT64", shape: [1], data: [7] },
    { name: "c", datatype: "BYTES", shape: [2], parameters: { binary_data_size: 11 } },
  ];
  const head = new TextEncoder().encode(JSON.stringify({ model_version: "3", outputs: rows }));
  const tail = [...new Uint8Array(new Float32Array([0.5, NaN]).buffer), 1, 0, 0, 0, 104, 2, 0, 0, 0, 255, 254];
  const answer = decode(new Uint8Array([...head, ...tail]), String(head.length));
  assert.equal(answer.model_version, "3");
  assert.deepEqual(answer.outputs.map(({ data }) => [...data]), [[0.5, NaN], [7], ["h", new Uint8Array([255, 254])]]);
});

test("what an example keeps is what was sent", () => {
  const tensors = [
    NUMBERS,
    { ...NUMBERS, data: new Float32Array([1, Infinity]) },
    { ...NUMBERS, datatype: "UINT64", data: [2n ** 63n, 1] },
    PICTURE,
    { name: "t", datatype: "BYTES", shape: [1], data: ["NaN"] },
  ];
  for (const tensor of tensors) {
    const row = JSON.parse(JSON.stringify(kept(tensor)));
    assert.deepEqual([...unkept(row)], [...tensor.data]);
  }
  assert.deepEqual(unkept({ datatype: "FP16", data: [0.5, "NaN", "-Infinity"] }), [0.5, NaN, -Infinity]);
});

test("of a long list the beginning is written, and how much is left out", () => {
  const text = readable({ data: new Float32Array(1000).fill(0.1) }, 10_000);
  assert.ok(text.includes("0.1, 0.1"), text);
  assert.ok(text.includes("… 800 more"));
});
