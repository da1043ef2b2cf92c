// The same request as code. That it runs as pasted is tested in tests/e2e/browser; here is what no model there has.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import test from "node:test";

import { dataFiles, needs, snippet } from "../../../static/js/playground/snippets.js";

const REQUEST = {
  model: "iris",
  version: "",
  server: { http: "http://localhost:8000", grpc: "localhost:8001" },
  token: false,
  decoupled: false,
  inputs: [{ name: "x", datatype: "FP32", shape: [1, 2], data: [1.5, -2] }],
  outputs: ["y"],
  binary: false,
  parameters: {},
};
const BYTES = { name: "png", datatype: "BYTES", shape: [1], data: [new Uint8Array([137, 80, 78, 71])] };

/** Returns the request with one input for each name. */
function named(...names) {
  return { ...REQUEST, inputs: names.map((name) => ({ ...REQUEST.inputs[0], name })) };
}

/** Returns the variables that Python code assigns numpy arrays to. */
function variables(code) {
  return [...code.matchAll(/^(\w+) = np\.array/gm)].map(([, name]) => name);
}

test("curl sends JSON to the model's address", () => {
  const text = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1.5,-2]}]}';
  const lines = ["curl -s 'http://localhost:8000/v2/models/iris/infer'", '-H "Content-Type: application/json"', `-d '${text}'`];
  assert.equal(snippet("curl", REQUEST), `${lines.join(" \\\n  ")}\n`);
});

test("a model's name is quoted for an address, and a chosen version stands behind it", () => {
  const code = snippet("curl", { ...REQUEST, model: "größe/2", version: "3" });
  assert.ok(code.includes("/v2/models/gr%C3%B6%C3%9Fe%2F2/versions/3/infer"));
});

test("the shell gets back a text with quotes and line ends as it was", () => {
  const text = "it's\n\"so\" $HOME `ls` \\";
  const code = snippet("curl", { ...REQUEST, inputs: [{ name: "t", datatype: "BYTES", shape: [1], data: [text] }] });
  const given = execFileSync("bash", ["-c", code.replace(/^curl/, "printf '%s\\0'")], { encoding: "utf8" }).split("\0");
  assert.equal(JSON.parse(given.at(-2)).inputs[0].data[0], text);
});

/** Returns the body that a snippet for curl sends. */
function sentByCurl(code, options = {}) {
  return execFileSync("bash", ["-c", code.replace(/\| curl[\s\S]*$/, "")], { maxBuffer: 1 << 26, ...options });
}

test("curl is given bytes behind the JSON, and how long the JSON is", () => {
  const code = snippet("curl", { ...REQUEST, inputs: [REQUEST.inputs[0], BYTES] });
  const [, head] = code.match(/Inference-Header-Content-Length: (\d+)/);
  const sent = sentByCurl(code);
  const { inputs } = JSON.parse(sent.subarray(0, Number(head)));
  assert.deepEqual(inputs[0], REQUEST.inputs[0]);
  assert.equal(inputs[1].parameters.binary_data_size, 8);
  assert.deepEqual([...sent.subarray(Number(head))], [4, 0, 0, 0, 137, 80, 78, 71]);
});

test("zeros are made by the shell, however many they are", () => {
  const zeros = { name: "x", datatype: "FP16", shape: [1, 3, 224, 224], data: [], origin: { kind: "zeros" } };
  const code = snippet("curl", { ...REQUEST, inputs: [zeros] });
  const sent = sentByCurl(code);
  const head = Number(code.match(/Content-Length: (\d+)/)[1]);
  assert.equal(sent.length - head, 2 * 3 * 224 * 224);
  assert.ok(sent.subarray(head).every((one) => one === 0));
  assert.equal(needs("curl", { ...REQUEST, inputs: [zeros] }), "");
});

test("a person's file is read from where it is, after its length", () => {
  const folder = mkdtempSync(join(tmpdir(), "slipway-snippet-"));
  writeFileSync(join(folder, "my cat's.jpg"), Buffer.from([1, 2, 3]));
  const file = { ...BYTES, data: [new Uint8Array([1, 2, 3])], origin: { kind: "bytes", file: "my cat's.jpg" } };
  const sent = sentByCurl(snippet("curl", { ...REQUEST, inputs: [file] }), { cwd: folder });
  assert.deepEqual([...sent.subarray(-7)], [3, 0, 0, 0, 1, 2, 3]);
  rmSync(folder, { recursive: true });
  assert.ok(snippet("http", { ...REQUEST, inputs: [file] }).includes('open("my cat\'s.jpg", "rb").read()'));
});

test("what is too long to write out lies in a file beside the code", () => {
  const long = { name: "X", datatype: "FP32", shape: [1, 5000], data: new Float32Array(5000).fill(2) };
  const request = { ...REQUEST, inputs: [long] };
  const [{ name, content }] = dataFiles("http", request);
  assert.equal(name, "x.bin");
  assert.equal(content.length, 20000);
  assert.ok(snippet("curl", request).includes("cat 'x.bin'"));
  assert.ok(snippet("grpc", request).includes('x = np.fromfile("x.bin", dtype=np.float32).reshape(1, 5000)'));
  assert.deepEqual(dataFiles("http", REQUEST), []);
});

test("a picture is read by PIL as the model takes it", () => {
  const layout = { channels: 3, height: 224, width: 200, first: true };
  const origin = { kind: "picture", file: "cat.jpg", layout, scale: "imagenet" };
  const request = { ...REQUEST, inputs: [{ name: "x", datatype: "FP32", shape: [1, 3, 224, 200], data: [], origin }] };
  const code = snippet("http", request);
  for (const line of [
    "from PIL import Image",
    'x = Image.open("cat.jpg").convert("RGB").resize((200, 224))',
    "x = np.asarray(x, dtype=np.float32) / 255",
    "x = (x - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]",
    "x = x.transpose(2, 0, 1)",
    "x = np.ascontiguousarray(x).reshape(1, 3, 224, 200).astype(np.float32)",
  ]) assert.ok(code.split("\n").includes(line), line);
  assert.equal(needs("http", request), "Needs: pip install 'tritonclient[http]' pillow.");
  assert.equal(needs("curl", request), "Needs: python3 with numpy and pillow.");
});

test("curl saves outputs that have no form in JSON", () => {
  const code = snippet("curl", { ...REQUEST, binary: true });
  assert.ok(code.includes('"parameters":{"binary_data_output":true}'));
  assert.ok(code.endsWith("--output answer.bin\n"));
  assert.ok(!snippet("http", { ...REQUEST, binary: true }).includes("binary_data_output"));
});

test("an alias stands where a version may", () => {
  const request = { ...REQUEST, version: "champion" };
  assert.ok(snippet("curl", request).includes("/versions/champion/infer"));
  assert.ok(snippet("grpc", request).includes('model_version="champion"'));
});

test("a token is read from the environment", () => {
  const request = { ...REQUEST, token: true };
  assert.ok(snippet("curl", request).includes('-H "Authorization: Bearer $SLIPWAY_TOKEN"'));
  assert.ok(snippet("http", request).includes('headers={"Authorization": "Bearer " + os.environ["SLIPWAY_TOKEN"]}'));
  assert.ok(snippet("grpc", request).includes('headers={"authorization": "Bearer " + os.environ["SLIPWAY_TOKEN"]}'));
  assert.ok(!snippet("grpc", REQUEST).includes("import os"));
});

test("each protocol is called at its own address", () => {
  assert.ok(snippet("http", REQUEST).includes('triton.InferenceServerClient("localhost:8000")'));
  assert.ok(snippet("grpc", REQUEST).includes('triton.InferenceServerClient("localhost:8001")'));
  assert.ok(snippet("grpc", REQUEST).includes("import tritonclient.grpc as triton"));
});

test("a sequence's parameters are Python's", () => {
  const parameters = { sequence_id: 7, sequence_start: true, sequence_end: false };
  const code = snippet("http", { ...REQUEST, parameters, version: "2" });
  assert.ok(code.includes('sequence_id=7, sequence_start=True, sequence_end=False, model_version="2"'));
});

test("arrays have the datatype's numpy type", () => {
  const array = (datatype, data) => snippet("http", { ...REQUEST, inputs: [{ name: "x", datatype, shape: [2], data }] });
  assert.ok(array("INT64", [1, 2]).includes("np.array([1, 2], dtype=np.int64).reshape(2)"));
  assert.ok(array("BOOL", [1, 0]).includes("np.array([True, False], dtype=bool).reshape(2)"));
  assert.ok(array("BYTES", ["a", "ö"]).includes('np.array(["a".encode(), "ö".encode()], dtype=object).reshape(2)'));
});

test("many values are folded into lines", () => {
  const data = Array.from({ length: 200 }, (_, index) => index + 0.25);
  const code = snippet("http", { ...REQUEST, inputs: [{ name: "x", datatype: "FP32", shape: [200], data }] });
  assert.ok(code.split("\n").every((line) => line.length <= 110));
  assert.deepEqual(JSON.parse(`[${code.match(/np\.array\(\[([^\]]+)\]/)[1].replace(/,\s*$/, "")}]`), data);
});

test("an input's variable is no keyword and no name that the code uses", () => {
  assert.deepEqual(variables(snippet("http", named("class", "np", "Lambda", "list"))), ["class_", "np_", "lambda_", "list_"]);
});

test("a name that Python cannot have is made one", () => {
  assert.deepEqual(variables(snippet("http", named("2nd input", "my-input:0"))), ["_2nd_input", "my_input_0"]);
});

test("no two inputs share a variable", () => {
  const names = variables(snippet("http", named("a", "A", "a_input", "a.input")));
  const all = names.flatMap((name) => [name, `${name}_input`]);
  assert.equal(new Set(all).size, all.length, all.join(" "));
});

test("a decoupled model is asked over a stream until its final response", () => {
  const code = snippet("grpc", { ...REQUEST, decoupled: true, token: true });
  assert.ok(code.includes("client.async_stream_infer(\"iris\", [x_input], enable_empty_final_response=True)"));
  assert.ok(code.includes('result.get_response().parameters["triton_final_response"].bool_param'));
  assert.equal(code.match(/headers=/g).length, 1);
});

const HANDLER = {
  ...REQUEST,
  server: { ...REQUEST.server, torchserve: "http://localhost:8080" },
  archive_versions: { 3: "1.0" },
  inputs: [{ name: "data", datatype: "BYTES", shape: [1, 1], data: ['@{"text": "it\'s"}'] }],
  parameters: { content_type: "application/json" },
};

test("TorchServe's clients send a handler the bytes themselves, and ask for TorchServe's own version", () => {
  const code = snippet("predictions", { ...HANDLER, version: "3" });
  const given = execFileSync("bash", ["-c", code.replace(/^curl/, "printf '%s\\0'")], { encoding: "utf8" }).split("\0").slice(0, -1);
  assert.deepEqual(given, ["-s", "http://localhost:8080/predictions/iris/1.0", "-H", "Content-Type: application/json", "--data-raw", '@{"text": "it\'s"}']);
});

test("TorchServe's clients ask a workflow by its own route, which knows no versions", () => {
  const code = snippet("predictions", { ...HANDLER, model: "a b", version: "3", workflow: true, parameters: {} });
  assert.match(code, /^curl -s 'http:\/\/localhost:8080\/wfpredict\/a%20b' \\\n {2}-H 'Content-Type: application\/octet-stream' \\\n {2}--data-raw/);
});

test("a file for a handler is sent as it lies, and what no command can hold comes from a file of those bytes", () => {
  const file = { ...HANDLER.inputs[0], data: [new Uint8Array([1, 2])], origin: { kind: "bytes", file: "cat.png" } };
  assert.match(snippet("predictions", { ...HANDLER, inputs: [file] }), /--data-binary '@cat\.png'/);
  const { origin: _, ...example } = file;
  assert.match(snippet("predictions", { ...HANDLER, inputs: [example] }), /--data-binary '@body\.bin'/);
  const [{ name, content }] = dataFiles("predictions", { ...HANDLER, inputs: [example] });
  assert.deepEqual([name, [...content]], ["body.bin", [1, 2]]);
});

test("tritonclient is given the type of what a handler is sent, beside its sequence", () => {
  const code = snippet("http", { ...HANDLER, parameters: { ...HANDLER.parameters, sequence_id: 7 } });
  assert.match(code, /infer\("iris", \[data_input\], sequence_id=7, parameters=\{"content_type": "application\/json"\}\)/);
});
