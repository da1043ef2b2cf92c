// A drawing as a model's image.

import assert from "node:assert/strict";
import test from "node:test";

import { imageOfInk, inkBox } from "../../../static/js/playground/ink.js";

/** Returns `size` x `size` pixels in which a box is inked. */
function drawing(size, { x, y, width, height }) {
  return Float32Array.from({ length: size * size }, (_, index) => {
    const [column, row] = [index % size, Math.floor(index / size)];
    return column >= x && column < x + width && row >= y && row < y + height ? 1 : 0;
  });
}

/** Returns an image's rows, each number as a digit of tenths. */
function rows(image, side) {
  return Array.from({ length: side }, (_, row) =>
    Array.from(image.slice(row * side, (row + 1) * side), (value) => Math.round(value * 10)),
  );
}

test("an empty drawing is an empty image", () => {
  assert.deepEqual([...imageOfInk(new Float32Array(64 * 64), 64, 4)], Array(16).fill(0));
  assert.equal(inkBox(new Float32Array(64), 8), null);
});

test("the box is around everything that is drawn", () => {
  assert.deepEqual(inkBox(drawing(16, { x: 3, y: 5, width: 4, height: 2 }), 16), { x: 3, y: 5, width: 4, height: 2 });
});

test("faint ink counts as none", () => {
  assert.equal(inkBox(Float32Array.from({ length: 16 }, () => 0.2), 4), null);
});

test("a square fills the image, wherever and however large it was drawn", () => {
  for (const box of [{ x: 1, y: 2, width: 8, height: 8 }, { x: 30, y: 20, width: 32, height: 32 }]) {
    assert.deepEqual([...imageOfInk(drawing(64, box), 64, 4)], Array(16).fill(1));
  }
});

test("a tall stroke is as high as the image and stands in its middle", () => {
  const image = imageOfInk(drawing(64, { x: 2, y: 0, width: 16, height: 32 }), 64, 4);
  assert.deepEqual(rows(image, 4), Array(4).fill([0, 10, 10, 0]));
});

test("a flat stroke is as wide as the image and stands in its middle", () => {
  const image = imageOfInk(drawing(64, { x: 0, y: 40, width: 32, height: 16 }), 64, 4);
  assert.deepEqual(rows(image, 4), [[0, 0, 0, 0], [10, 10, 10, 10], [10, 10, 10, 10], [0, 0, 0, 0]]);
});

test("a block that is half inked has half the ink", () => {
  const ink = drawing(32, { x: 0, y: 0, width: 32, height: 32 });
  for (let row = 0; row < 32; row += 1) for (let column = 4; column < 8; column += 1) ink[row * 32 + column] = 0;
  assert.deepEqual(rows(imageOfInk(ink, 32, 4), 4), Array(4).fill([5, 10, 10, 10]));
});
