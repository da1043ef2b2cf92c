// The same request as code that runs as pasted: curl, and tritonclient over HTTP and gRPC.

import { requestBody } from "./wire.js";

/**
 * @import { Parameters, Tensor } from "./wire.js"
 *
 * @typedef {"curl" | "http" | "grpc"} SnippetKind
 *
 * @typedef {object} SnippetRequest
 * @property {string} model
 * @property {number | null} version null for the one that the server chooses by itself
 * @property {{ http: string, grpc: string }} server its addresses
 * @property {boolean} token whether the server asks for a token
 * @property {boolean} decoupled whether the model answers with a stream
 * @property {Tensor[]} inputs
 * @property {string[]} outputs their names
 * @property {Parameters} parameters such as the sequence that the request belongs to
 */

/** @type {Record<string, string>} */
const NUMPY = {
  BOOL: "bool", UINT8: "np.uint8", UINT16: "np.uint16", UINT32: "np.uint32", UINT64: "np.uint64", INT8: "np.int8",
  INT16: "np.int16", INT32: "np.int32", INT64: "np.int64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64",
  BF16: "np.float32",
};
const LINE = 96;
// Names that the code itself uses, and Python's keywords.
const TAKEN = new Set(
  (
    "np triton client result os base64 queue answers final error list print " +
    "and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda nonlocal not or pass raise return try while with yield"
  ).split(" "),
);

/**
 * Returns a request as code.
 * @param {SnippetKind} kind
 * @param {SnippetRequest} request
 * @returns {string}
 */
export function snippet(kind, request) {
  return kind === "curl" ? curl(request) : python(kind, request);
}

/** @param {SnippetRequest} request */
function curl({ model, version, server, token, inputs, parameters }) {
  const path = `/v2/models/${encodeURIComponent(model)}${version ? `/versions/${version}` : ""}/infer`;
  const url = quote(`${server.http}${path}`);
  const header = token ? ` \\\n  -H "Authorization: Bearer $SLIPWAY_TOKEN"` : "";
  const { json, binary } = requestBody(inputs, parameters);
  const text = JSON.stringify(json);
  if (!binary.length) {
    return `curl -s ${url} \\\n  -H "Content-Type: application/json"${header} \\\n  -d ${quote(text)}\n`;
  }
  const head = new TextEncoder().encode(text);
  const type = `-H "Content-Type: application/octet-stream" \\\n  -H "Inference-Header-Content-Length: ${head.length}"`;
  const content = wrap(base64(concat([head, ...binary])));
  return `base64 -d <<'END' | curl -s ${url} \\\n  ${type}${header} \\\n  --data-binary @-\n${content}\nEND\n`;
}

/**
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 */
function python(kind, request) {
  const names = variableNames(request.inputs.map(({ name }) => name));
  const call = callArguments(kind, request, names);
  const lines = [
    ...imports(kind, request),
    "",
    `client = triton.InferenceServerClient(${literal(address(kind, request))})`,
    ...request.inputs.flatMap((input, index) => inputLines(input, names[index])),
    "",
    ...(request.decoupled ? streamed(call, request) : answered(call, request.outputs)),
  ];
  return `${lines.join("\n")}\n`;
}

/**
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 */
function imports(kind, { inputs, token, decoupled }) {
  const needsBase64 = inputs.some(({ bytes }) => bytes);
  const modules = [needsBase64 && "base64", token && "os", decoupled && "queue"].filter(Boolean);
  const standard = modules.length ? [...modules.map((name) => `import ${name}`), ""] : [];
  const install = `# pip install "tritonclient[${kind}]"`;
  return [install, ...standard, "import numpy as np", `import tritonclient.${kind} as triton`];
}

/**
 * Returns the server's address as tritonclient takes it: without a scheme.
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 */
function address(kind, { server }) {
  return kind === "grpc" ? server.grpc : server.http.replace(/^https?:\/\//, "");
}

/**
 * Returns what `infer` is called with.
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 * @param {string[]} names of the inputs' variables
 */
function callArguments(kind, { model, version, token, decoupled, parameters }, names) {
  const sequence = Object.entries(parameters).map(([name, value]) => `${name}=${pythonValue(value)}`);
  const chosen = version ? [`model_version=${literal(String(version))}`] : [];
  const headers = token && !decoupled ? [headersArgument(kind)] : [];
  const inputs = `[${names.map((name) => `${name}_input`).join(", ")}]`;
  return [literal(model), inputs, ...sequence, ...chosen, ...headers].join(", ");
}

/**
 * @param {Tensor} input
 * @param {string} name of its variable
 */
function inputLines(input, name) {
  return [
    `${name} = ${array(input)}`,
    `${name}_input = triton.InferInput(${literal(input.name)}, list(${name}.shape), ${literal(input.datatype)})`,
    `${name}_input.set_data_from_numpy(${name})`,
  ];
}

/**
 * @param {string} call
 * @param {string[]} outputs
 */
function answered(call, outputs) {
  const prints = outputs.map((output) => `print(${literal(output)}, result.as_numpy(${literal(output)}))`);
  return [`result = client.infer(${call})`, ...prints];
}

/**
 * A decoupled model's responses come over a stream; the last one says that it is, and may hold no outputs.
 * @param {string} call
 * @param {SnippetRequest} request
 */
function streamed(call, { outputs, token }) {
  const callback = "callback=lambda result, error: answers.put((result, error))";
  return [
    "answers = queue.Queue()",
    `client.start_stream(${[callback, ...(token ? [headersArgument("grpc")] : [])].join(", ")})`,
    `client.async_stream_infer(${call}, enable_empty_final_response=True)`,
    "final = False",
    "while not final:",
    "    result, error = answers.get()",
    "    if error:",
    "        raise error",
    '    final = result.get_response().parameters["triton_final_response"].bool_param',
    "    if result.get_response().outputs:",
    ...outputs.map((output) => `        print(${literal(output)}, result.as_numpy(${literal(output)}))`),
    "client.stop_stream()",
  ];
}

/**
 * gRPC takes metadata in lower case alone.
 * @param {"http" | "grpc"} kind
 */
function headersArgument(kind) {
  return `headers={${literal(kind === "grpc" ? "authorization" : "Authorization")}: "Bearer " + os.environ["SLIPWAY_TOKEN"]}`;
}

/**
 * Returns a Python variable for each input; neither it nor the same with `_input` behind it has another meaning.
 * @param {string[]} inputs their names
 * @returns {string[]}
 */
function variableNames(inputs) {
  const taken = new Set(TAKEN);
  return inputs.map((input) => {
    let name = input.replace(/\W+/g, "_").replace(/^(\d)/, "_$1").toLowerCase();
    while (taken.has(name) || taken.has(`${name}_input`)) name += "_";
    taken.add(name).add(`${name}_input`);
    return name;
  });
}

/**
 * Returns a tensor as a numpy array.
 * @param {Tensor} tensor
 */
function array({ datatype, shape, data = [], bytes }) {
  const reshaped = `.reshape(${shape.join(", ")})`;
  if (bytes) return `np.array([base64.b64decode(\n${wrap(base64(bytes), '    "', '"')}\n)], dtype=object)${reshaped}`;
  if (datatype === "BYTES") {
    return `np.array([${data.map((one) => `${literal(String(one))}.encode()`).join(", ")}], dtype=object)${reshaped}`;
  }
  const values = data.map((one) => (datatype === "BOOL" ? pythonValue(Boolean(one)) : String(one)));
  return `np.array([${fold(values)}], dtype=${NUMPY[datatype] ?? "np.float32"})${reshaped}`;
}

/**
 * Joins values in lines of a readable length.
 * @param {string[]} values
 */
function fold(values) {
  const lines = [""];
  for (const value of values) {
    if (lines[lines.length - 1].length + value.length > LINE) lines.push("");
    lines[lines.length - 1] += `${value}, `;
  }
  if (lines.length === 1) return lines[0].replace(/, $/, "");
  return `\n    ${lines.map((line) => line.trimEnd()).join("\n    ")}\n`;
}

/** @param {import("./wire.js").Element} value */
function pythonValue(value) {
  return typeof value === "boolean" ? (value ? "True" : "False") : literal(value);
}

/**
 * Returns a text or number as Python and JSON both write it.
 * @param {string | number} value
 */
function literal(value) {
  return JSON.stringify(value);
}

/**
 * Quotes a text for the shell.
 * @param {string} value
 */
function quote(value) {
  return `'${value.replaceAll("'", "'\\''")}'`;
}

/**
 * Breaks a long text into lines.
 * @param {string} value
 * @param {string} [before] each line
 * @param {string} [after] each line
 */
function wrap(value, before = "", after = "") {
  return (value.match(/.{1,76}/g) ?? [""]).map((line) => before + line + after).join("\n");
}

/** @param {Uint8Array} bytes */
function base64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

/** @param {Uint8Array[]} parts */
function concat(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
