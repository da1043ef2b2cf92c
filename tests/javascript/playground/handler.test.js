// What a handler of TorchServe's is sent and answers: types, and as what they are shown.

import assert from "node:assert/strict";
import test from "node:test";

import { answerKind } from "../../../static/js/playground/handler_answer.js";
import { modeOf, typeOfFile } from "../../../static/js/playground/handler_input.js";

const PNG = new Uint8Array([0x89, 0x50, 0x4e, 0x47, 0xff]);

test("a file is sent as what the browser takes it for, or as its ending says", () => {
  assert.equal(typeOfFile("cat.png", "image/png"), "image/png");
  assert.equal(typeOfFile("rows.JSON", ""), "application/json");
  assert.equal(typeOfFile("weights", ""), "application/octet-stream");
});

test("an example is shown as what it was kept as", () => {
  assert.equal(modeOf("application/json; charset=utf-8", false), "json");
  assert.equal(modeOf("text/plain", false), "text");
  assert.equal(modeOf("image/png", true), "picture");
  assert.equal(modeOf("application/octet-stream", true), "file");
});

for (const [what, element, told, kind, type] of [
  ["JSON without a type", '{\n  "a": 1\n}', "", "json", "application/json"],
  ["JSON with one", "[1]", "application/json; charset=utf-8", "json", "application/json"],
  ["JSON that is none", "not so", "application/json", "text", "application/json"],
  ["a text that could be JSON", "12", "text/plain", "text", "text/plain"],
  ["a page", "<b>no</b>", "text/html", "text", "text/html"],
  ["a picture without a type", PNG, "", "picture", "image/png"],
  ["a picture", new Uint8Array([0xff, 1]), "image/webp", "picture", "image/webp"],
  ["bytes of another type", PNG, "application/zip", "binary", "application/zip"],
  ["bytes", new Uint8Array([0xff, 1]), "", "binary", ""],
]) {
  test(`an answer is shown by its type: ${what}`, () => {
    assert.deepEqual(answerKind(element, told), { kind, type });
  });
}
