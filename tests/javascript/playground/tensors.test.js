// Inputs of a model: in which ways a person can give them, and what was given as elements.

import assert from "node:assert/strict";
import test from "node:test";

import * as tensors from "../../../static/js/playground/tensors.js";

const modes = (name, datatype, shape) => tensors.inputModes({ name, datatype, shape });

const ALWAYS = ["fill", "file", "json"];

test("a digit can be drawn, whichever way its pixels lie", () => {
  assert.deepEqual(modes("image", "FP32", [-1, 1, 8, 8]), ["draw", "grid", ...ALWAYS]);
  assert.deepEqual(modes("pixels", "FP32", [-1, 64]), ["draw", "table", ...ALWAYS]);
  assert.deepEqual(modes("image", "FP32", [-1, 1, 28, 28]), ["draw", ...ALWAYS]);
  assert.deepEqual(modes("pixels", "UINT8", [784]), ["draw", ...ALWAYS]);
});

test("a larger image can be a picture", () => {
  assert.deepEqual(modes("image", "FP32", [-1, 3, 224, 224]), ["picture", ...ALWAYS]);
  assert.deepEqual(modes("image", "UINT8", [224, 224, 3]), ["picture", ...ALWAYS]);
});

test("rows of columns are a table, and so is a list", () => {
  assert.deepEqual(modes("features", "FP64", [-1, 4]), ["table", ...ALWAYS]);
  assert.deepEqual(modes("features", "FP64", [-1, 256]), ["table", ...ALWAYS]);
  assert.deepEqual(modes("ids", "INT64", [-1, -1]), ["table", ...ALWAYS]);
  assert.deepEqual(modes("list", "INT64", [-1]), ["table", ...ALWAYS]);
});

test("a row as wide as a digit has pixels is a table first, unless it is named as a picture", () => {
  assert.deepEqual(modes("x", "FP32", [-1, 64]), ["table", "draw", ...ALWAYS]);
});

test("a picture of any size is a picture, and its request has one", () => {
  for (const [name, shape, expected] of [
    ["images", [-1, 3, -1, -1], [1, 3, 224, 224]],
    ["x", [-1, -1, -1, 3], [1, 224, 224, 3]],
    ["pixel_values", [-1, -1, -1, -1], [1, 3, 224, 224]],
    ["grey_image", [-1, 1, -1, 64], [1, 1, 224, 64]],
  ]) {
    assert.deepEqual(modes(name, "FP32", shape), ["picture", ...ALWAYS]);
    assert.deepEqual(tensors.pictureShape(shape, tensors.imageLayout({ name, shape })), expected);
  }
});

test("sequences of any length are no pictures", () => {
  assert.ok(!modes("steps", "FP32", [-1, -1, 3]).includes("picture"));
  assert.ok(!modes("mask", "INT64", [-1, 1, -1, -1]).includes("picture"));
  assert.ok(!modes("attention", "FP32", [-1, -1, -1, -1]).includes("picture"));
});

test("few numbers in more dimensions have a field each, and many are generated", () => {
  assert.deepEqual(modes("cube", "FP32", [2, 3, 4]), ["grid", ...ALWAYS]);
  assert.deepEqual(modes("wide", "FP64", [-1, 257]), ALWAYS);
  assert.deepEqual(modes("long", "FP32", [2, 16, 4096]), ALWAYS);
});

test("one text can be typed or read from a file, several are a table", () => {
  assert.deepEqual(modes("text", "BYTES", [-1, 1]), ["text", "table", "file", "json"]);
  assert.deepEqual(modes("text", "BYTES", [1]), ["text", "file", "json"]);
  assert.deepEqual(modes("text", "BYTES", [2]), ["table", "json"]);
});

test("bytes that are named as a picture can be drawn", () => {
  assert.deepEqual(modes("png", "BYTES", [1]), ["draw", "file", "text"]);
});

test("open dimensions are of one row", () => {
  assert.deepEqual(tensors.fixedShape([-1, "3", 2]), [1, 3, 2]);
  assert.equal(tensors.elementCount([1, 3, 2]), 6);
  assert.equal(tensors.elementCount([]), 1);
});

test("a number may have a point or a comma", () => {
  assert.equal(tensors.parseElement(" 1.5 ", "FP32"), 1.5);
  assert.equal(tensors.parseElement("-2,25", "FP32"), -2.25);
  assert.equal(tensors.parseElement("3e2", "INT32"), 300);
});

test("what is no number says so in its own words", () => {
  for (const text of ["", "  ", "four", "1,2,3"]) {
    assert.throws(() => tensors.parseElement(text, "FP32"), { message: `“${text}” is not a number.` });
  }
});

test("an integer input takes whole numbers alone", () => {
  assert.throws(() => tensors.parseElement("1.5", "UINT8"), { message: "1.5 is not a whole number, as UINT8 needs." });
});

test("for BOOL, 0, false and nothing are false", () => {
  const values = ["0", "false", " ", "1", "true"].map((text) => tensors.parseElement(text, "BOOL"));
  assert.deepEqual(values, [false, false, false, true, true]);
});

test("the brackets of JSON say the shape", () => {
  assert.deepEqual(tensors.parseJson("[[1, 2, 3], [4, 5, 6]]", [1, 3]), { shape: [2, 3], data: [1, 2, 3, 4, 5, 6] });
});

test("a flat list takes the signature's shape, and its length says an open dimension", () => {
  assert.deepEqual(tensors.parseJson("[1, 2, 3]", [-1, 3]), { shape: [1, 3], data: [1, 2, 3] });
  assert.deepEqual(tensors.parseJson("[1, 2, 3, 4, 5, 6]", [-1, 3]), { shape: [2, 3], data: [1, 2, 3, 4, 5, 6] });
  assert.deepEqual(tensors.parseJson("[1, 2, 3, 4]", [1, 3]), { shape: [1, 3], data: [1, 2, 3, 4] });
});

test("one value stands for every element", () => {
  assert.deepEqual(tensors.parseJson("7", [-1, 2]), { shape: [1, 2], data: [7, 7] });
  assert.throws(() => tensors.parseJson("null", [1]), { message: "Give a list in brackets, or one value for all elements." });
});

test("uneven lists and numbers that JSON would round are refused", () => {
  assert.throws(() => tensors.parseJson("[[1, 2], [3]]", [-1, 2]), { message: /^The lists are uneven/ });
  assert.throws(() => tensors.parseJson("[[1, 2], 3]", [-1, 2]), { message: /^The lists are uneven/ });
  assert.throws(() => tensors.parseJson("[9007199254740993]", [1]), { message: /more digits than JSON keeps/ });
});

test("a whole number is exact, however long, and within its datatype", () => {
  assert.equal(tensors.parseElement("9007199254740993", "INT64"), 9007199254740993n);
  assert.throws(() => tensors.parseElement("256", "UINT8"), { message: "256 is outside of UINT8, which goes from 0 to 255." });
  assert.throws(() => tensors.parseElement("-1", "UINT64"), { message: /outside of UINT64/ });
});

test("a float may be no number or infinite", () => {
  assert.deepEqual(["nan", "-inf", "Infinity"].map((text) => tensors.parseElement(text, "FP32")), [NaN, -Infinity, Infinity]);
  assert.throws(() => tensors.parseElement("nan", "INT8"), { message: "“nan” is not a number." });
});

test("what is not JSON says what is wrong with it", () => {
  assert.throws(() => tensors.parseJson("[1,", [1]), { message: /^This is not JSON: .+\.$/ });
});

test("a flat list is nested as its shape says, and flattened again", () => {
  const nested = tensors.nest([1, 2, 3, 4, 5, 6], [2, 3]);
  assert.deepEqual(nested, [[1, 2, 3], [4, 5, 6]]);
  assert.deepEqual(tensors.flat(nested), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(tensors.nest([0, 0], [1, 1, 2]), [[[0, 0]]]);
});

test("a picture's layout is read from the dimension of its channels", () => {
  assert.deepEqual(tensors.imageLayout({ name: "x", shape: [1, 3, 224, 200] }), { channels: 3, height: 224, width: 200, first: true });
  assert.deepEqual(tensors.imageLayout({ name: "x", shape: [1, 32, 64, 1] }), { channels: 1, height: 32, width: 64, first: false });
  assert.equal(tensors.imageLayout({ name: "x", shape: [1, 4, 224, 224] }), null);
  assert.equal(tensors.imageLayout({ name: "x", shape: [224, 224] }), null);
});

// Two pixels beside each other: red, and a grey.
const PIXELS = [255, 0, 0, 255, 128, 128, 128, 255];

test("pixels lie by channel or by pixel, as the layout says", () => {
  const layout = { channels: 3, height: 1, width: 2 };
  assert.deepEqual(tensors.pixelElements(PIXELS, { ...layout, first: true }, "byte"), [255, 128, 0, 128, 0, 128]);
  assert.deepEqual(tensors.pixelElements(PIXELS, { ...layout, first: false }, "byte"), [255, 0, 0, 128, 128, 128]);
});

test("one channel is the luma of the three", () => {
  const layout = { channels: 1, height: 1, width: 2, first: true };
  assert.deepEqual(tensors.pixelElements(PIXELS, layout, "byte"), [76, 128]);
  assert.deepEqual(tensors.pixelElements(PIXELS, layout, "unit"), [0.299, 0.502]);
});

test("ImageNet's scale takes each channel's own mean and deviation", () => {
  const layout = { channels: 3, height: 1, width: 1, first: true };
  assert.deepEqual(tensors.pixelElements([255, 0, 0, 255], layout, "imagenet"), [2.2489, -2.0357, -1.8044]);
});
