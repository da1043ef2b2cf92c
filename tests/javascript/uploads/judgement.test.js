// What chosen files are, before anything is sent: by the table that the server's programs have, too.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";
import { deflateRawSync } from "node:zlib";

import { judge, zipNames } from "../../../static/js/uploads/judgement.js";
import { externalFiles, missingWeights } from "../../../static/js/uploads/onnx.js";
import { asMissing } from "../../../static/js/uploads/files.js";

const python = process.env.VIRTUAL_ENV ? `${process.env.VIRTUAL_ENV}/bin/python` : ".venv/bin/python";
const program = "import json; from repository.files.foreign_formats import as_json; print(json.dumps(as_json()))";
const table = JSON.parse(execFileSync(python, ["-c", program], { encoding: "utf8" }));

/** Returns a chosen file of a path and content. */
function chosen(path, ...content) {
  return { path, file: new File(content, path.split("/").at(-1)) };
}

/** Returns which format keeps files from being published. */
async function kindOf(...files) {
  return (await judge(files, table))?.kind?.name ?? null;
}

const bytes = (...values) => Uint8Array.from(values);
const latin = (text) => Uint8Array.from(text, (letter) => letter.charCodeAt(0));

const POINTER = `version https://git-lfs.github.com/spec/v1\noid sha256:${"a".repeat(64)}\nsize 438013677\n`;

test("a pointer of Git LFS beside a model is told too", async () => {
  const said = await judge([chosen("model.onnx", "x"), chosen("model.onnx.data", POINTER)], table);
  assert.deepEqual([said.path, said.kind.name], ["model.onnx.data", "git_lfs_pointer"]);
  assert.match(said.kind.sentence, /run `git lfs pull`/);
});

test("files of other tools are known by their first bytes, whatever their names", async () => {
  const heads = {
    safetensors: bytes(64, 0, 0, 0, 0, 0, 0, 0, 0x7b, 0x22),
    keras: latin("\x89HDF\r\n\x1a\n"),
    xgboost: '{"learner":{}}',
    lightgbm: "tree\nversion=v4\n",
    catboost: "CBM1",
    pickle: bytes(0x80, 4, 0x95),
    tflite: latin("\0\0\0\0TFL3"),
    git_lfs_pointer: POINTER,
    web_page: "\n<!DOCTYPE html><html>",
  };
  for (const [name, head] of Object.entries(heads)) {
    assert.equal(await kindOf(chosen("what", head)), name);
    assert.equal(await kindOf(chosen("model.onnx", head)), name, `${name} under the name of a model`);
  }
});

test("files of other tools are known by their endings", async () => {
  const endings = { "m.keras": "keras", "m.ubj": "xgboost", "m.cbm": "catboost", "m.joblib": "pickle", "m.gguf": "gguf", "m/saved_model.pb": "tensorflow_savedmodel" };
  for (const [path, name] of Object.entries(endings)) assert.equal(await kindOf(chosen(path, "x")), name);
});

test("a folder with weights is told by them, and not by what lies beside", async () => {
  const files = [chosen("README.md", "# x"), chosen("config.json", "{}"), chosen("model.safetensors", "")];
  assert.equal((await judge(files, table)).path, "model.safetensors");
});

test("what may be a model is left to the inspection, with everything beside it", async () => {
  for (const path of ["model.onnx", "model.pt", "1/model.py", "config.pbtxt", "all.zip", "archived.tar.gz", "archived.tgz"]) {
    assert.equal(await judge([chosen(path, "x"), chosen("tokenizer.pkl", bytes(0x80, 4))], table), null);
  }
});

test("what is not known is said to be", async () => {
  const { kind } = await judge([chosen("weights", "x")], table);
  assert.equal(kind.name, "unknown");
  assert.match(kind.sentence, /served are ONNX/);
});

/** Returns a zip archive with empty files of these names. */
function zip(...names) {
  const entries = [];
  const directory = [];
  let at = 0;
  for (const name of names) {
    const data = deflateRawSync("");
    const local = Buffer.alloc(30);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(8, 8);
    local.writeUInt32LE(data.length, 18);
    local.writeUInt16LE(name.length, 26);
    const central = Buffer.alloc(46);
    central.writeUInt32LE(0x02014b50, 0);
    central.writeUInt16LE(name.length, 28);
    central.writeUInt32LE(at, 42);
    entries.push(local, Buffer.from(name), data);
    directory.push(central, Buffer.from(name));
    at += local.length + name.length + data.length;
  }
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt32LE(Buffer.concat(directory).length, 12);
  end.writeUInt32LE(at, 16);
  return Buffer.concat([...entries, ...directory, end]);
}

test("weights that torch.save wrote are told from a model by what the archive holds", async () => {
  assert.deepEqual(await zipNames(new Blob([zip("m/data.pkl", "m/data/0")])), ["m/data.pkl", "m/data/0"]);
  assert.equal(await kindOf(chosen("model.pt", zip("m/data.pkl", "m/data/0", "m/version"))), "torch_weights");
  assert.equal(await kindOf(chosen("model.pt", zip("m/data.pkl", "m/constants.pkl", "m/code/x.py"))), null);
  assert.equal(await kindOf(chosen("model.zip", zip("config.json", "model.weights.h5"))), "keras");
  assert.deepEqual(await zipNames(new Blob(["PK\x03\x04 and no end"])), []);
});

/** Returns a protobuf field of bytes. */
function field(number, ...content) {
  const payload = Buffer.concat(content.map((one) => Buffer.from(one)));
  const head = number < 16 ? [number * 8 + 2] : [((number * 8 + 2) & 0x7f) | 0x80, (number * 8 + 2) >> 7];
  return Buffer.concat([Buffer.from(head), Buffer.from([payload.length]), payload]);
}

const pair = (key, value) => field(13, field(1, key), field(2, value));
const tensor = (name) => Buffer.concat([pair("location", name), pair("offset", "0")]);
/** ir_version 9, and a graph with a weight in a file, and one in an attribute of a node. */
const model = Buffer.concat([
  bytes(8, 9),
  field(7, field(5, tensor("model.onnx.data")), field(1, field(5, field(5, tensor("more.bin"))))),
]);

test("the files that a model keeps its weights in are read from it", () => {
  assert.deepEqual(externalFiles(model), ["model.onnx.data", "more.bin"]);
  assert.deepEqual(externalFiles(model.subarray(0, 20)), []);
  assert.deepEqual(externalFiles(Buffer.from("no protobuf at all")), []);
});

test("those of them that were not chosen are missing, beside the model", async () => {
  const files = [chosen("1/model.onnx", model), chosen("1/more.bin", "x")];
  assert.deepEqual(await missingWeights(files[0].file, "1/model.onnx", files), ["1/model.onnx.data"]);
  const judged = await judge(files, table);
  assert.deepEqual([judged.path, judged.kind, judged.missing], ["1/model.onnx", null, ["1/model.onnx.data"]]);
  assert.equal(await judge([...files, chosen("1/model.onnx.data", "x")], table), null);
});

test("files chosen for missing ones get their paths", () => {
  const paths = (files) => files.map(({ path }) => path);
  assert.deepEqual(paths(asMissing([chosen("renamed.bin", "")], ["1/a.data"])), ["1/a.data"]);
  assert.deepEqual(paths(asMissing([chosen("b.data", ""), chosen("a.data", "")], ["1/a.data", "1/b.data"])), ["1/b.data", "1/a.data"]);
});
