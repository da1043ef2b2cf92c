// The same request as code that runs as pasted: curl, and tritonclient over HTTP and gRPC.

import { body } from "./wire.js";

const NUMPY = { BOOL: "bool", UINT8: "np.uint8", UINT16: "np.uint16", UINT32: "np.uint32", UINT64: "np.uint64", INT8: "np.int8", INT16: "np.int16", INT32: "np.int32", INT64: "np.int64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64", BF16: "np.float32" };
const LINE = 96;

export function snippet(kind, request) {
  return kind === "curl" ? curl(request) : python(kind, request);
}

function path({ model, version }) {
  return `/v2/models/${encodeURIComponent(model)}${version ? `/versions/${version}` : ""}/infer`;
}

function curl(request) {
  const url = `${request.server.http}${path(request)}`;
  const token = request.token ? ` \\\n  -H "Authorization: Bearer $SLIPWAY_TOKEN"` : "";
  const { json, binary } = body(request.inputs, Object.keys(request.parameters).length ? request.parameters : undefined);
  if (!binary.length) return `curl -s ${quote(url)} \\\n  -H "Content-Type: application/json"${token} \\\n  -d ${quote(JSON.stringify(json))}\n`;
  const head = new TextEncoder().encode(JSON.stringify(json));
  const whole = base64(concat([head, ...binary]));
  const headers = `-H "Content-Type: application/octet-stream" \\\n  -H "Inference-Header-Content-Length: ${head.length}"`;
  return `base64 -d <<'END' | curl -s ${quote(url)} \\\n  ${headers}${token} \\\n  --data-binary @-\n${wrap(whole)}\nEND\n`;
}

function python(kind, request) {
  const grpc = kind === "grpc";
  const address = grpc ? request.server.grpc : request.server.http.replace(/^https?:\/\//, "");
  const needsBase64 = request.inputs.some(({ bytes }) => bytes);
  const modules = [needsBase64 && "base64", request.token && "os", request.decoupled && "queue"].filter(Boolean);
  const lines = [...modules.map((name) => `import ${name}`), ...(modules.length ? [""] : []), "import numpy as np", `import tritonclient.${grpc ? "grpc" : "http"} as triton`, "", `client = triton.InferenceServerClient(${text(address)})`];
  const names = [];
  for (const input of request.inputs) {
    const name = variable(input.name, names);
    lines.push(`${name} = ${array(input)}`, `${name}_input = triton.InferInput(${text(input.name)}, list(${name}.shape), ${text(input.datatype)})`, `${name}_input.set_data_from_numpy(${name})`);
  }
  const sequence = Object.entries(request.parameters).map(([name, value]) => `${name}=${typeof value === "boolean" ? (value ? "True" : "False") : text(value)}`);
  const extra = [...sequence, ...(request.version ? [`model_version=${text(String(request.version))}`] : []), ...(request.token && !request.decoupled ? [headers(grpc)] : [])];
  const call = [text(request.model), `[${names.map((name) => `${name}_input`).join(", ")}]`, ...extra].join(", ");
  lines.push("", ...(request.decoupled ? streamed(call, request) : answered(call, request.outputs)));
  return `${lines.join("\n")}\n`;
}

function answered(call, outputs) {
  return [`result = client.infer(${call})`, ...outputs.map((output) => `print(${text(output)}, result.as_numpy(${text(output)}))`)];
}

/** A decoupled model's responses come over a stream; the last one says that it is, and may hold no outputs. */
function streamed(call, { outputs, token }) {
  return [
    "answers = queue.Queue()",
    `client.start_stream(${["callback=lambda result, error: answers.put((result, error))", ...(token ? [headers(true)] : [])].join(", ")})`,
    `client.async_stream_infer(${call}, enable_empty_final_response=True)`,
    "final = False",
    "while not final:",
    "    result, error = answers.get()",
    "    if error:",
    "        raise error",
    '    final = result.get_response().parameters["triton_final_response"].bool_param',
    "    if result.get_response().outputs:",
    ...outputs.map((output) => `        print(${text(output)}, result.as_numpy(${text(output)}))`),
    "client.stop_stream()",
  ];
}

function headers(grpc) {
  return `headers={${text(grpc ? "authorization" : "Authorization")}: "Bearer " + os.environ["SLIPWAY_TOKEN"]}`;
}

function variable(name, taken) {
  let plain = name.replace(/\W+/g, "_").replace(/^(\d)/, "_$1").toLowerCase();
  if (["np", "triton", "client", "result", "os", "base64", "queue", "answers", "final", "error", "in", "is", "if"].includes(plain)) plain += "_";
  while (taken.includes(plain)) plain += "_";
  taken.push(plain);
  return plain;
}

function array({ datatype, shape, data, bytes }) {
  const reshaped = `.reshape(${shape.join(", ")})`;
  if (bytes) return `np.array([base64.b64decode(\n${wrap(base64(bytes), '    "', '"')}\n)], dtype=object)${reshaped}`;
  if (datatype === "BYTES") return `np.array([${data.map((one) => `${text(String(one))}.encode()`).join(", ")}], dtype=object)${reshaped}`;
  const values = data.map((one) => (datatype === "BOOL" ? (one ? "True" : "False") : String(one)));
  return `np.array([${fold(values)}], dtype=${NUMPY[datatype] ?? "np.float32"})${reshaped}`;
}

/** Values in lines of a readable length. */
function fold(values) {
  const lines = [""];
  for (const value of values) {
    if (lines.at(-1).length + value.length > LINE) lines.push("");
    lines[lines.length - 1] += `${value}, `;
  }
  return lines.length === 1 ? lines[0].replace(/, $/, "") : `\n    ${lines.map((line) => line.trimEnd()).join("\n    ")}\n`;
}

function text(value) {
  return JSON.stringify(value);
}

function quote(value) {
  return `'${value.replaceAll("'", "'\\''")}'`;
}

function wrap(value, before = "", after = "") {
  return value.match(/.{1,76}/g).map((line) => before + line + after).join("\n");
}

function base64(bytes) {
  let binary = "";
  for (const byte of bytes) binary += String.fromCharCode(byte);
  return btoa(binary);
}

function concat(parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  parts.reduce((offset, part) => (whole.set(part, offset), offset + part.length), 0);
  return whole;
}
