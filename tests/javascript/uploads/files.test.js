// Files as a person gave them: without what file managers leave behind, and matched with those of an upload.

import assert from "node:assert/strict";
import test from "node:test";

import { fromDrop, fromInput, matchFiles, proposedName, tidy } from "../../../static/js/uploads/files.js";

/** Returns chosen files of the given paths, each as long as its path. */
function chosen(...paths) {
  return paths.map((path) => ({ path, file: new File([path], path.split("/").at(-1)) }));
}

const pathsOf = (files) => files.map(({ path }) => path);

test("a folder's own name is taken off the paths in it", () => {
  const { folder, files } = tidy(chosen("digits/config.pbtxt", "digits/1/model.onnx"));
  assert.equal(folder, "digits");
  assert.deepEqual(pathsOf(files), ["config.pbtxt", "1/model.onnx"]);
});

test("what file managers leave behind is left out", () => {
  const paths = ["m/.DS_Store", "m/__MACOSX/x", "m/1/__pycache__/model.pyc", "m/.git/config", "m/1/model.py"];
  assert.deepEqual(pathsOf(tidy(chosen(...paths)).files), ["1/model.py"]);
});

test("files beside each other have no folder", () => {
  assert.deepEqual(tidy(chosen("a.onnx", "b.txt")).folder, "");
  assert.deepEqual(pathsOf(tidy(chosen("a/x.onnx", "b/y.onnx")).files), ["a/x.onnx", "b/y.onnx"]);
  assert.deepEqual(pathsOf(tidy(chosen("a/x.onnx", "y.onnx")).files), ["a/x.onnx", "y.onnx"]);
});

test("a name is proposed from the folder, or from the file without its ending", () => {
  assert.equal(proposedName(chosen("digits/1/model.onnx")), "digits");
  assert.equal(proposedName(chosen("my model.v2.onnx")), "my_model.v2");
  assert.equal(proposedName(chosen("-größe-.pt")), "gr_e-");
  assert.equal(proposedName([]), "");
});

test("a file input gives paths within the folder that was chosen, or names", () => {
  const inFolder = Object.defineProperty(new File(["x"], "model.onnx"), "webkitRelativePath", { value: "m/1/model.onnx" });
  assert.deepEqual(pathsOf(fromInput({ files: [inFolder, new File(["y"], "a.txt")] })), ["m/1/model.onnx", "a.txt"]);
});

test("a dropped folder is walked until nothing more comes", async () => {
  const file = (name) => ({ name, isFile: true, file: (good) => good(new File([name], name)) });
  const folder = (name, ...batches) => {
    const left = [...batches, []];
    return { name, isFile: false, createReader: () => ({ readEntries: (good) => good(left.shift()) }) };
  };
  const entry = folder("m", [file("config.pbtxt")], [folder("1", [file("model.onnx")])]);
  const found = await fromDrop({ items: [{ webkitGetAsEntry: () => entry }], files: [] });
  assert.deepEqual(pathsOf(found), ["m/config.pbtxt", "m/1/model.onnx"]);
});

test("a drop that carries files without entries gives the files", async () => {
  const found = await fromDrop({ items: [{ webkitGetAsEntry: () => null }], files: [new File(["x"], "a.onnx")] });
  assert.deepEqual(pathsOf(found), ["a.onnx"]);
});

const KNOWN = [{ path: "1/model.onnx", size: 12 }, { path: "config.pbtxt", size: 5 }];

test("an upload goes on with files of the same path and size", () => {
  const files = [
    { path: "config.pbtxt", file: new File(["12345"], "config.pbtxt") },
    { path: "1/model.onnx", file: new File(["x".repeat(12)], "model.onnx") },
  ];
  assert.deepEqual(matchFiles(KNOWN, files).map(({ file }) => file?.size), [12, 5]);
});

test("a file chosen without its folder is found by the end of its path", () => {
  const [model] = matchFiles(KNOWN, [{ path: "model.onnx", file: new File(["x".repeat(12)], "model.onnx") }]);
  assert.equal(model.file.name, "model.onnx");
});

test("a file of another size is another file", () => {
  const rows = matchFiles(KNOWN, [{ path: "config.pbtxt", file: new File(["1234"], "config.pbtxt") }]);
  assert.deepEqual(rows.map(({ file }) => file), [undefined, undefined]);
});

test("the only file of an upload may have got another name", () => {
  const [row] = matchFiles([KNOWN[1]], [{ path: "renamed.txt", file: new File(["12345"], "renamed.txt") }]);
  assert.equal(row.file.name, "renamed.txt");
});
