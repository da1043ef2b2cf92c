// Reads the names of the files with an ONNX model's weights (external data) from the model's protobuf.

/** @import { ChosenFile } from "./files.js" */

const MAX_BYTES = 64 * 1024 * 1024; // the largest model that is read; a model without its weights is small
const MAX_FIELDS = 2_000_000;

/**
 * The paths to tensors, as in serving/backends/onnxruntime/onnx_file.py: message -> number of a field -> message of that field.
 * @type {Record<string, Record<number, string>>}
 */
const PATHS = {
  Model: { 7: "Graph", 20: "TrainingInfo", 25: "Function" },
  Graph: { 1: "Node", 5: "Tensor", 15: "SparseTensor" },
  Node: { 5: "Attribute" },
  Attribute: { 5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor" },
  SparseTensor: { 1: "Tensor", 2: "Tensor" },
  Function: { 7: "Node", 11: "Attribute" },
  TrainingInfo: { 1: "Graph", 2: "Graph" },
};
const EXTERNAL_DATA = 13; // a field of a Tensor: pairs of key (1) and value (2)

/**
 * Returns the paths of weight files that a model names and that were not chosen.
 * @param {Blob} file
 * @param {string} path the path of the model
 * @param {ChosenFile[]} files all chosen files
 * @returns {Promise<string[]>} [] also for a file that cannot be read, because the inspection reports the error
 */
export async function missingWeights(file, path, files) {
  if (file.size > MAX_BYTES) return [];
  const folder = path.includes("/") ? path.slice(0, path.lastIndexOf("/") + 1) : "";
  const present = new Set(files.map((one) => one.path));
  const named = externalFiles(new Uint8Array(await file.arrayBuffer())).map((name) => folder + name.replace(/^\.\//, ""));
  return named.filter((name) => !present.has(name));
}

/**
 * Returns the names of a model's files of external data, each once; [] if the bytes are no ONNX model.
 * @param {Uint8Array} bytes
 * @returns {string[]}
 */
export function externalFiles(bytes) {
  const walk = new Walk(bytes);
  try {
    walk.message(0, bytes.length, "Model");
  } catch (error) {
    if (error instanceof RangeError) return [];
    throw error;
  }
  return [...walk.found].sort();
}

/** Walks through a protobuf by the lengths of its fields, limited by its bytes and by MAX_FIELDS. */
class Walk {
  /** @type {Set<string>} */
  found = new Set();
  #left = MAX_FIELDS;
  #at = 0;

  /** @param {Uint8Array} bytes */
  constructor(bytes) {
    this.bytes = bytes;
  }

  /**
   * @param {number} start
   * @param {number} end
   * @param {string} kind
   */
  message(start, end, kind) {
    if (kind === "Tensor") this.#tensor(start, end);
    else this.#fields(start, end, (number, from, to) => PATHS[kind][number] && this.message(from, to, PATHS[kind][number]));
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  #tensor(start, end) {
    this.#fields(start, end, (number, from, to) => {
      if (number !== EXTERNAL_DATA) return;
      const pair = ["", "", ""];
      this.#fields(from, to, (part, first, last) => {
        if (part === 1 || part === 2) pair[part] = new TextDecoder().decode(this.bytes.subarray(first, last));
      });
      if (pair[1] === "location" && pair[2]) this.found.add(pair[2]);
    });
  }

  /**
   * Calls `take` for each field with bytes. Throws a RangeError if the bytes are no protobuf.
   * @param {number} start
   * @param {number} end
   * @param {(number: number, from: number, to: number) => void} take
   */
  #fields(start, end, take) {
    this.#at = start;
    while (this.#at < end) {
      this.#left -= 1;
      const key = this.#varint(end);
      const kind = key % 8;
      if (kind === 0) this.#varint(end);
      else if (kind === 1) this.#at += 8;
      else if (kind === 5) this.#at += 4;
      else if (kind !== 2 || this.#left < 0) throw new RangeError("no protobuf");
      if (kind !== 2) continue;
      const length = this.#varint(end);
      const [from, to] = [this.#at, this.#at + length];
      if (to > end) throw new RangeError("truncated");
      take(Math.floor(key / 8), from, to);
      this.#at = to;
    }
  }

  /** @param {number} end */
  #varint(end) {
    let value = 0;
    for (let shift = 1; this.#at < end; shift *= 128) {
      const byte = this.bytes[this.#at];
      this.#at += 1;
      value += (byte & 0x7f) * shift;
      if (byte < 0x80) return value;
      if (shift > 2 ** 63) break;
    }
    throw new RangeError("no number");
  }
}
