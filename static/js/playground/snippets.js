// The request as code that can be pasted and run: curl, and tritonclient over HTTP and gRPC. The code reads pictures and files and
// generates numbers itself. Other inputs that are too long for the code are in a separate file.

import { toBinary } from "./datatypes.js";
import { base64, binaryOf, requestBody } from "./wire.js";

/**
 * @import { PictureOrigin } from "./origins.js"
 * @import { Element } from "./datatypes.js"
 * @import { Parameters, Tensor } from "./wire.js"
 *
 * @typedef {"predictions" | "curl" | "http" | "grpc"} SnippetKind
 *
 * @typedef {object} SnippetRequest
 * @property {string} model
 * @property {string} version a number or an alias; "" for the server's choice
 * @property {{ http: string, grpc: string, torchserve?: string }} server the addresses of the server
 * @property {Record<string, string>} [archive_versions] version -> TorchServe's own version, for versions that are archives
 * @property {boolean} [workflow] whether the model is a TorchServe workflow
 * @property {boolean} token whether the server requires a token
 * @property {boolean} decoupled whether the model answers with a stream
 * @property {Tensor[]} inputs
 * @property {string[]} outputs the names of the outputs
 * @property {boolean} binary whether an output has no form in JSON, so that curl must ask for binary data
 * @property {Parameters} parameters the parameters of the request, such as its sequence
 *
 * @typedef {object} DataFile
 * @property {string} name
 * @property {Uint8Array<ArrayBuffer>} content
 */

/** @type {Record<string, string>} */
const NUMPY = {
  BOOL: "bool", UINT8: "np.uint8", UINT16: "np.uint16", UINT32: "np.uint32", UINT64: "np.uint64", INT8: "np.int8",
  INT16: "np.int16", INT32: "np.int32", INT64: "np.int64", FP16: "np.float16", FP32: "np.float32", FP64: "np.float64",
  BF16: "np.float32",
};
const RAW_FILE = "body.bin"; // the file with the unchanged body for a handler
const LINE = 96;
const WRITTEN_MOST = 4096; // the most elements that are written into the code
const BYTES_MOST = 48 << 10; // the largest BYTES that are written into the code
// Names that the code itself uses, and Python's keywords.
const TAKEN = new Set(
  (
    "np triton client result os base64 queue answers final error list print open " +
    "and as assert async await break class continue def del elif else except finally for from global if import in is " +
    "lambda nonlocal not or pass raise return try while with yield"
  ).split(" "),
);
const MEAN = "[0.485, 0.456, 0.406]";
const DEVIATION = "[0.229, 0.224, 0.225]";

/**
 * Returns a request as code.
 * @param {SnippetKind} kind
 * @param {SnippetRequest} request
 * @returns {string}
 */
export function snippet(kind, request) {
  if (kind === "predictions") return predictions(request);
  return kind === "curl" ? curl(request) : python(kind, request);
}

/**
 * Returns the requirements of the code, apart from the server, in words; "" if there are none.
 * @param {SnippetKind} kind
 * @param {SnippetRequest} request
 */
export function needs(kind, { inputs, binary }) {
  if (kind === "predictions") return "The request in the form of TorchServe’s clients.";
  const pictures = inputs.some(({ origin }) => origin?.kind === "picture");
  if (kind !== "curl") return `Needs: pip install 'tritonclient[${kind}]'${pictures ? " pillow" : ""}.`;
  const made = inputs.some(({ origin }) => origin && !["zeros", "bytes"].includes(origin.kind));
  const python = made ? `Needs: python3 with numpy${pictures ? " and pillow" : ""}.` : "";
  return [python, binary ? "JSON cannot carry these outputs: answer.bin holds them behind the answer's JSON." : ""].filter(Boolean).join(" ");
}

/**
 * Returns the files to save for the code: inputs that are too long to write out.
 * @param {SnippetKind} kind
 * @param {SnippetRequest} request
 * @returns {DataFile[]}
 */
export function dataFiles(kind, { inputs }) {
  if (kind === "predictions") {
    return inputs.filter(liesInFile).map(({ data }) => ({ name: RAW_FILE, content: rawBytes(data[0]) }));
  }
  const names = fileNames(inputs);
  return inputs.flatMap((input, index) =>
    isLong(input) ? [{ name: names[index], content: toBinary(input.datatype, input.data) }] : [],
  );
}

/**
 * Returns whether an input is too long for the code, and the code cannot generate it.
 * @param {Tensor} input
 */
function isLong({ data, origin, datatype }) {
  if (origin) return false;
  if (data.length > WRITTEN_MOST) return true;
  if (datatype !== "BYTES") return false;
  return Array.from(data).reduce((/** @type {number} */ sum, one) => sum + lengthOf(one), 0) > BYTES_MOST;
}

/** @param {Element} element of BYTES */
function rawBytes(element) {
  return element instanceof Uint8Array ? new Uint8Array(element) : new TextEncoder().encode(String(element));
}

/** @param {Element} element of BYTES */
function lengthOf(element) {
  return element instanceof Uint8Array ? element.length : String(element).length;
}

// -- TorchServe ------------------------------------------------------------------------------------------------------------
/**
 * Returns the request in the form of TorchServe's clients: the plain bytes, with their type.
 * @param {SnippetRequest} request
 */
function predictions({ model, version, server, token, inputs, parameters, archive_versions: own = {}, decoupled, workflow }) {
  const [input] = inputs;
  const name = encodeURIComponent(model);
  const path = workflow ? `/wfpredict/${name}` : `/predictions/${name}${version ? `/${encodeURIComponent(own[version] ?? version)}` : ""}`;
  // Without a type, curl sends the type of a form, and the first node of a workflow gets the fields of that form.
  const sent = parameters.content_type || (workflow ? "application/octet-stream" : "");
  const type = sent ? ` \\\n  -H ${quote(`Content-Type: ${sent}`)}` : "";
  const header = token ? ` \\\n  -H "Authorization: Bearer $SLIPWAY_TOKEN"` : "";
  const file = input.origin?.kind === "bytes" ? input.origin.file : liesInFile(input) ? RAW_FILE : "";
  const body = file ? `--data-binary ${quote(`@${file}`)}` : `--data-raw ${quote(String(input.data[0]))}`;
  return `curl -s${decoupled ? "N" : ""} ${quote(`${server.torchserve}${path}`)}${type}${header} \\\n  ${body}\n`;
}

/**
 * Returns whether a handler's input is too long for a command line, or is no text.
 * @param {Tensor} input
 */
function liesInFile(input) {
  return !input.origin && (input.data[0] instanceof Uint8Array || isLong(input));
}

// -- curl ------------------------------------------------------------------------------------------------------------------
/** @param {SnippetRequest} request */
function curl({ model, version, server, token, inputs, parameters: given, binary }) {
  const parameters = binary ? { ...given, binary_data_output: true } : given;
  const saved = binary ? " \\\n  --output answer.bin" : "";
  const path = `/v2/models/${encodeURIComponent(model)}${version ? `/versions/${encodeURIComponent(version)}` : ""}/infer`;
  const url = quote(`${server.http}${path}`);
  const header = token ? ` \\\n  -H "Authorization: Bearer $SLIPWAY_TOKEN"` : "";
  const behind = inputs.map((input) => behindJson(input));
  if (behind.every((one) => one === null)) {
    const text = JSON.stringify(requestBody(inputs, parameters).json);
    return `curl -s ${url} \\\n  -H "Content-Type: application/json"${header} \\\n  -d ${quote(text)}${saved}\n`;
  }
  const names = fileNames(inputs);
  const rows = inputs.map((input, index) => {
    const [{ name, datatype, shape, data }, part] = [input, behind[index]];
    return part ? { name, datatype, shape, parameters: { binary_data_size: part.size } } : { name, datatype, shape, data: Array.from(data) };
  });
  const text = JSON.stringify(Object.keys(parameters).length ? { inputs: rows, parameters } : { inputs: rows });
  const parts = behind.flatMap((part, index) => (part ? [part.command(names[index])] : []));
  const type = `-H "Content-Type: application/octet-stream"`;
  const length = `-H "Inference-Header-Content-Length: ${new TextEncoder().encode(text).length}"`;
  const body = [`printf '%s' ${quote(text)}`, ...parts].map((line) => `  ${line}`).join("\n");
  return `{\n${body}\n} | curl -s ${url} \\\n  ${type} \\\n  ${length}${header} \\\n  --data-binary @-${saved}\n`;
}

/**
 * Returns the number of an input's bytes after the JSON, and the command that writes these bytes; null if there are none.
 * @param {Tensor} input
 * @returns {{ size: number, command: (file: string) => string } | null}
 */
function behindJson(input) {
  const { datatype, shape, data, origin } = input;
  if (origin?.kind === "bytes") {
    const size = lengthOf(data[0]);
    const octal = [0, 8, 16, 24].map((shift) => `\\${((size >>> shift) & 255).toString(8).padStart(3, "0")}`).join("");
    return { size: size + 4, command: () => `printf '${octal}'; cat ${quote(origin.file)}` };
  }
  if (origin) {
    const size = shape.reduce((product, dim) => product * dim, 1) * Number(datatype.replace(/^\D+/, "") || 8) / 8;
    if (origin.kind === "zeros") return { size, command: () => `head -c ${size} /dev/zero` };
    const lines = [...(origin.kind === "picture" ? ["from PIL import Image"] : []), ...made(input, "x")];
    const code = ["import sys, numpy as np", ...lines, `sys.stdout.buffer.write(${wireBytes(datatype)})`];
    return { size, command: () => `python3 -c ${quote(code.join("\n"))}` };
  }
  const content = binaryOf(input);
  if (!content) return null;
  if (isLong(input)) return { size: content.length, command: (file) => `cat ${quote(file)}` };
  return { size: content.length, command: () => `base64 -d <<'END'\n${wrap(base64(content))}\nEND` };
}

/**
 * Returns Python for the bytes of an array `x` on the wire. The bytes of a BF16 are the upper half of the bytes of a float.
 * @param {string} datatype
 */
function wireBytes(datatype) {
  return datatype === "BF16" ? "(x.view(np.uint32) >> 16).astype(np.uint16).tobytes()" : "x.tobytes()";
}

// -- Python ----------------------------------------------------------------------------------------------------------------
/**
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 */
function python(kind, request) {
  const names = variableNames(request.inputs.map(({ name }) => name));
  const call = callArguments(kind, request, names);
  const files = fileNames(request.inputs);
  const lines = [
    ...imports(kind, request),
    "",
    `client = triton.InferenceServerClient(${literal(address(kind, request))})`,
    ...request.inputs.flatMap((input, index) => inputLines(input, names[index], files[index])),
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
  const written = (/** @type {Tensor} */ input) => !input.origin && !isLong(input);
  const needsBase64 = inputs.some((input) => written(input) && Array.from(input.data).some((one) => one instanceof Uint8Array));
  const modules = [needsBase64 && "base64", token && "os", decoupled && "queue"].filter(Boolean);
  const standard = modules.length ? [...modules.map((name) => `import ${name}`), ""] : [];
  const pictures = inputs.some(({ origin }) => origin?.kind === "picture");
  const install = `# pip install "tritonclient[${kind}]"${pictures ? " pillow" : ""}`;
  const image = pictures ? ["from PIL import Image"] : [];
  return [install, ...standard, "import numpy as np", `import tritonclient.${kind} as triton`, ...image];
}

/**
 * Returns the server's address for tritonclient: without a scheme.
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 */
function address(kind, { server }) {
  return kind === "grpc" ? server.grpc : server.http.replace(/^https?:\/\//, "");
}

/**
 * Returns the arguments of `infer`.
 * @param {"http" | "grpc"} kind
 * @param {SnippetRequest} request
 * @param {string[]} names the names of the variables of the inputs
 */
function callArguments(kind, { model, version, token, decoupled, parameters }, names) {
  const given = Object.entries(parameters);
  const sequence = given.filter(([name]) => name.startsWith("sequence_")).map(([name, value]) => `${name}=${pythonValue(value)}`);
  const others = given.filter(([name]) => !name.startsWith("sequence_")).map(([name, value]) => `${literal(name)}: ${pythonValue(value)}`);
  if (others.length) sequence.push(`parameters={${others.join(", ")}}`);
  const chosen = version ? [`model_version=${literal(version)}`] : [];
  const headers = token && !decoupled ? [headersArgument(kind)] : [];
  const inputs = `[${names.map((name) => `${name}_input`).join(", ")}]`;
  return [literal(model), inputs, ...sequence, ...chosen, ...headers].join(", ");
}

/**
 * @param {Tensor} input
 * @param {string} name the name of its variable
 * @param {string} file the file that contains the input, if it is too long for the code
 */
function inputLines(input, name, file) {
  const lines = input.origin ? made(input, name) : isLong(input) ? fromFile(input, name, file) : [`${name} = ${array(input)}`];
  return [
    ...lines,
    `${name}_input = triton.InferInput(${literal(input.name)}, list(${name}.shape), ${literal(input.datatype)})`,
    `${name}_input.set_data_from_numpy(${name})`,
  ];
}

/**
 * Returns lines that read a tensor from a file of its bytes on the wire.
 * @param {Tensor} input
 * @param {string} name
 * @param {string} file
 */
function fromFile({ datatype, shape }, name, file) {
  const reshaped = `.reshape(${shape.join(", ")})`;
  if (datatype === "BYTES") {
    return [
      `content = open(${literal(file)}, "rb").read()`,
      `${name} = []`,
      "while content:",
      '    size = int.from_bytes(content[:4], "little")',
      `    ${name}.append(content[4 : 4 + size])`,
      "    content = content[4 + size :]",
      `${name} = np.array(${name}, dtype=object)${reshaped}`,
    ];
  }
  if (datatype !== "BF16") return [`${name} = np.fromfile(${literal(file)}, dtype=${NUMPY[datatype]})${reshaped}`];
  return [
    `${name} = np.fromfile(${literal(file)}, dtype=np.uint16).astype(np.uint32) << 16`,
    `${name} = ${name}.view(np.float32)${reshaped}`,
  ];
}

/**
 * Returns lines that generate a tensor from its origin.
 * @param {Tensor} input
 * @param {string} name the name of the variable
 */
function made({ datatype, shape, origin }, name) {
  const [dims, type] = [shape.join(", "), NUMPY[datatype]];
  const tuple = shape.length === 1 ? `(${dims},)` : `(${dims})`;
  switch (origin?.kind) {
    case "zeros": return [`${name} = np.zeros(${tuple}, dtype=${type})`];
    case "ones": return [`${name} = np.ones(${tuple}, dtype=${type})`];
    case "random": {
      const high = datatype === "BOOL" ? 2 : 10;
      const whole = /INT|BOOL/.test(datatype);
      const numbers = whole ? `integers(0, ${high}, ${tuple})` : `random(${tuple})`;
      return [`${name} = np.random.default_rng().${numbers}.astype(${type})`];
    }
    case "npy": return [`${name} = np.load(${literal(origin.file)}).astype(${type}).reshape(${dims})`];
    case "bytes": return [`${name} = np.array([open(${literal(origin.file)}, "rb").read()], dtype=object).reshape(${dims})`];
    case "picture": return [...picture(origin, name), `${name} = np.ascontiguousarray(${name}).reshape(${dims}).astype(${type})`];
    default: return [];
  }
}

/**
 * Returns lines that read a picture with the size, scale and order of channels that the model takes.
 * @param {PictureOrigin} origin
 * @param {string} name
 */
function picture({ file, layout, scale }, name) {
  const { channels, height, width, first } = layout;
  const mode = channels === 1 ? "L" : "RGB";
  const grey = channels === 1 ? "128" : "(128, 128, 128)";
  const opened = file === null ? `Image.new(${literal(mode)}, (${width}, ${height}), ${grey})` : `Image.open(${literal(file)}).convert(${literal(mode)})`;
  const scaled = scale === "byte" ? "" : " / 255";
  return [
    `${name} = ${opened}${file === null ? "" : `.resize((${width}, ${height}))`}`,
    `${name} = np.asarray(${name}, dtype=np.float32)${scaled}`,
    ...(scale !== "imagenet" ? [] : [`${name} = (${name} - ${channels === 1 ? "0.485" : MEAN}) / ${channels === 1 ? "0.229" : DEVIATION}`]),
    ...(first && channels > 1 ? [`${name} = ${name}.transpose(2, 0, 1)`] : []),
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
 * Returns lines that read the responses of a decoupled model from a stream. The final response is marked, and may have no outputs.
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
 * Returns the argument with the token. gRPC accepts metadata only in lower case.
 * @param {"http" | "grpc"} kind
 */
function headersArgument(kind) {
  return `headers={${literal(kind === "grpc" ? "authorization" : "Authorization")}: "Bearer " + os.environ["SLIPWAY_TOKEN"]}`;
}

// -- names and literals ----------------------------------------------------------------------------------------------------
/**
 * Returns the name of a Python variable for each input. Neither that name nor the name with `_input` appended has another meaning.
 * @param {string[]} inputs the names of the inputs
 * @returns {string[]}
 */
function variableNames(inputs) {
  const taken = new Set([...TAKEN, "content", "size"]);
  return inputs.map((input) => {
    let name = input.replace(/\W+/g, "_").replace(/^(\d)/, "_$1").toLowerCase();
    while (taken.has(name) || taken.has(`${name}_input`)) name += "_";
    taken.add(name).add(`${name}_input`);
    return name;
  });
}

/** @param {Tensor[]} inputs */
function fileNames(inputs) {
  return variableNames(inputs.map(({ name }) => name)).map((name) => `${name}.bin`);
}

/**
 * Returns a tensor as a numpy array.
 * @param {Tensor} tensor
 */
function array({ datatype, shape, data }) {
  const reshaped = `.reshape(${shape.join(", ")})`;
  const elements = Array.from(data);
  if (datatype === "BYTES") return `np.array([${elements.map(bytesLiteral).join(", ")}], dtype=object)${reshaped}`;
  const values = elements.map((one) => (datatype === "BOOL" ? pythonValue(Boolean(one)) : numberLiteral(one)));
  return `np.array([${fold(values)}], dtype=${NUMPY[datatype] ?? "np.float32"})${reshaped}`;
}

/** @param {Element} element of BYTES */
function bytesLiteral(element) {
  if (element instanceof Uint8Array) return `base64.b64decode(\n${wrap(base64(element), '    "', '"')}\n)`;
  return `${literal(String(element))}.encode()`;
}

/** @param {Element} element */
function numberLiteral(element) {
  if (typeof element === "number" && !Number.isFinite(element)) return `float("${String(element).replace("Infinity", "inf")}")`;
  return String(element);
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

/** @param {import("./wire.js").Parameter} value */
function pythonValue(value) {
  return typeof value === "boolean" ? (value ? "True" : "False") : literal(value);
}

/**
 * Returns a literal of a text or number that is valid in Python and JSON.
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
 * @param {string} [before] the text before each line
 * @param {string} [after] the text after each line
 */
function wrap(value, before = "", after = "") {
  return (value.match(/.{1,76}/g) ?? [""]).map((line) => before + line + after).join("\n");
}
