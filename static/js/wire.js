// The V2 inference protocol's request: JSON, and behind it the binary data that JSON cannot carry.

export const TIMING = "slipway_timing";

/** {json, binary: [Uint8Array]} of inputs {name, datatype, shape, data | bytes}. */
export function body(inputs, parameters) {
  const binary = [];
  const rows = inputs.map(({ name, datatype, shape, data, bytes }) => {
    if (!bytes) return { name, datatype, shape, data };
    const element = new Uint8Array(4 + bytes.length);
    new DataView(element.buffer).setUint32(0, bytes.length, true);
    element.set(bytes, 4);
    binary.push(element);
    return { name, datatype, shape, parameters: { binary_data_size: element.length } };
  });
  return { json: parameters ? { inputs: rows, parameters } : { inputs: rows }, binary };
}

/** The request as fetch sends it. */
export function encode(inputs, parameters) {
  const { json, binary } = body(inputs, parameters);
  const head = new TextEncoder().encode(JSON.stringify(json));
  if (!binary.length) return { json, content: head, headers: { "Content-Type": "application/json" } };
  const headers = { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(head.length) };
  return { json, content: new Blob([head, ...binary]), headers, binaryLength: binary.reduce((sum, part) => sum + part.length, 0) };
}

/** JSON for reading: lists of numbers stay on one line, long ones are cut. */
export function readable(value, most = 4000) {
  const text = JSON.stringify(value, null, 2).replace(/\[\s*((?:-?[\d.eE+-]+|"[^"]{0,24}"|true|false|null)(?:,\s*(?:-?[\d.eE+-]+|"[^"]{0,24}"|true|false|null))*)\s*\]/g, (_, list) => `[${list.replace(/\s+/g, " ")}]`);
  return text.length > most ? `${text.slice(0, most)}\n… ${text.length - most} more characters` : text;
}
