// Rows that were pasted or read, and numpy's files.

import assert from "node:assert/strict";
import test from "node:test";

import { readNpy } from "../../../static/js/playground/npy.js";
import { inWidth, parseRows, withoutHeader } from "../../../static/js/playground/rows.js";

test("tabs stand before semicolons before commas before blanks", () => {
  assert.deepEqual(parseRows("1,5\t2\n3\t4\n"), [["1,5", "2"], ["3", "4"]]);
  assert.deepEqual(parseRows("1,5;2\r\n3;4"), [["1,5", "2"], ["3", "4"]]);
  assert.deepEqual(parseRows("1,2\n3,4"), [["1", "2"], ["3", "4"]]);
  assert.deepEqual(parseRows("1 2\n3  4"), [["1", "2"], ["3", "4"]]);
  assert.deepEqual(parseRows("two words\nand more"), [["two words"], ["and more"]]);
});

test("a quoted cell keeps separators, quotes and line ends", () => {
  assert.deepEqual(parseRows('"a, ""b""",c\n"two\nlines",d'), [['a, "b"', "c"], ["two\nlines", "d"]]);
});

test("a first row of names is left out, and one of numbers is not", () => {
  assert.deepEqual(withoutHeader([["length", "width"], ["1", "2"]]), { rows: [["1", "2"]], header: true });
  assert.deepEqual(withoutHeader([["1", "2"], ["3", "4"]]).rows.length, 2);
});

test("a column or line of whole rows is folded into them", () => {
  assert.deepEqual(inWidth([["1"], ["2"], ["3"], ["4"]], 2, "x"), [["1", "2"], ["3", "4"]]);
  assert.deepEqual(inWidth([["1", "2", "3", "4"]], 2, "x"), [["1", "2"], ["3", "4"]]);
  assert.throws(() => inWidth([["1", "2"], ["3"]], 2, "x"), { message: "Row 2 has 1 column, but x has 2." });
});

/** Returns a file as numpy's format 1.0 describes it. */
function npy(descr, shape, content) {
  const head = `{'descr': '${descr}', 'fortran_order': False, 'shape': ${shape}, }`.padEnd(117) + "\n";
  return new Uint8Array([0x93, ...Buffer.from("NUMPY\x01\x00"), head.length, 0, ...Buffer.from(head), ...new Uint8Array(content.buffer)]);
}

test("an array that numpy wrote is read", () => {
  const { shape, data } = readNpy(npy("<i8", "(2, 3)", new BigInt64Array([0n, 1n, 2n, 3n, 4n, 2n ** 62n])));
  assert.deepEqual([shape, [...data]], [[2, 3], [0, 1, 2, 3, 4, 2n ** 62n]]);
  assert.deepEqual(readNpy(npy("<f4", "(2,)", new Float32Array([0.5, 1]))).shape, [2]);
});

test("what is no array of numbers is refused", () => {
  assert.throws(() => readNpy(new Uint8Array([1, 2, 3])), { message: "That is no .npy file." });
  assert.throws(() => readNpy(npy("|O", "(1,)", new Uint8Array(8))), { message: /^The array in that file has the type \|O/ });
});
