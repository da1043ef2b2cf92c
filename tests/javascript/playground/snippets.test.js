// The same request as code. That it runs as pasted is tested in tests/e2e/browser; here is what no model there has.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import test from "node:test";

import { snippet } from "../../../static/js/playground/snippets.js";

const REQUEST = {
  model: "iris",
  version: null,
  server: { http: "http://localhost:8000", grpc: "localhost:8001" },
  token: false,
  decoupled: false,
  inputs: [{ name: "x", datatype: "FP32", shape: [1, 2], data: [1.5, -2] }],
  outputs: ["y"],
  parameters: {},
};
const BYTES = { name: "png", datatype: "BYTES", shape: [1], bytes: new Uint8Array([137, 80, 78, 71]) };

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
  const code = snippet("curl", { ...REQUEST, model: "größe/2", version: 3 });
  assert.ok(code.includes("/v2/models/gr%C3%B6%C3%9Fe%2F2/versions/3/infer"));
});

test("the shell gets back a text with quotes and line ends as it was", () => {
  const text = "it's\n\"so\" $HOME `ls` \\";
  const code = snippet("curl", { ...REQUEST, inputs: [{ name: "t", datatype: "BYTES", shape: [1], data: [text] }] });
  const given = execFileSync("bash", ["-c", code.replace(/^curl/, "printf '%s\\0'")], { encoding: "utf8" }).split("\0");
  assert.equal(JSON.parse(given.at(-2)).inputs[0].data[0], text);
});

test("curl is given bytes as base64, and how long the JSON before them is", () => {
  const code = snippet("curl", { ...REQUEST, inputs: [BYTES] });
  const [, head] = code.match(/Inference-Header-Content-Length: (\d+)/);
  const [, content] = code.match(/@-\n([\s\S]+)\nEND\n$/);
  const sent = Buffer.from(content, "base64");
  assert.equal(JSON.parse(sent.subarray(0, Number(head))).inputs[0].parameters.binary_data_size, 8);
  assert.deepEqual([...sent.subarray(Number(head))], [4, 0, 0, 0, 137, 80, 78, 71]);
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
  const code = snippet("http", { ...REQUEST, parameters, version: 2 });
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
