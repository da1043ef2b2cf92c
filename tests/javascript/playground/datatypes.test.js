// Elements as bytes on the wire, and back.

import assert from "node:assert/strict";
import test from "node:test";

import { fitsJson, fromBinary, toBinary } from "../../../static/js/playground/datatypes.js";

const there = (datatype, elements) => [...fromBinary(datatype, toBinary(datatype, elements))];

test("elements of every datatype come back", () => {
  const elements = {
    BOOL: [true, false], UINT8: [0, 255], UINT16: [65535], UINT32: [4294967295], UINT64: [1, 2n ** 64n - 1n], INT8: [-128, 127],
    INT16: [-32768], INT32: [-2147483648], INT64: [-(2n ** 63n), 7], FP16: [0.5, -65504, 2 ** -24, Infinity], BF16: [1.5, -0.0078125],
    FP32: [0.25, -(2 ** 100)], FP64: [0.1, NaN], BYTES: ["ö", "", new Uint8Array([255])],
  };
  for (const [datatype, given] of Object.entries(elements)) assert.deepEqual(there(datatype, given), given, datatype);
});

test("halves are rounded to the nearest one, of two to the even one", () => {
  // By IEEE 754: 2049 lies between 2048 and 2050; 65520 is the first that is too large.
  assert.deepEqual(there("FP16", [2049, 2051, 65519, 65520, 1e-8, 6e-8, 0.1]), [2048, 2052, 65504, Infinity, 0, 2 ** -24, 0.0999755859375]);
  assert.deepEqual(there("BF16", [256.5, 257, 259]), [256, 256, 260]);
  assert.deepEqual(there("FP16", [NaN, -0]), [NaN, -0]);
});

test("what JSON cannot carry is known", () => {
  assert.ok(fitsJson("FP32", [1, 2]));
  assert.ok(!fitsJson("FP16", [1]));
  assert.ok(!fitsJson("FP32", [NaN]));
  assert.ok(!fitsJson("INT64", [2n ** 62n]));
  assert.ok(!fitsJson("BYTES", [new Uint8Array([255])]));
});
