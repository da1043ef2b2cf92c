// Reads arrays that numpy wrote: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

import { fromBinary } from "./datatypes.js";

/** @type {Record<string, string>} datatype in numpy -> datatype in V2 */
const DATATYPES = {
  "|b1": "BOOL", "|u1": "UINT8", "<u2": "UINT16", "<u4": "UINT32", "<u8": "UINT64", "|i1": "INT8", "<i2": "INT16", "<i4": "INT32",
  "<i8": "INT64", "<f2": "FP16", "<f4": "FP32", "<f8": "FP64",
};

/**
 * Reads a .npy file. Throws an Error with a sentence if the file cannot be read.
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {{ shape: number[], data: import("./datatypes.js").Elements }}
 */
export function readNpy(bytes) {
  const magic = new TextDecoder("latin1").decode(bytes.subarray(1, 6));
  if (bytes[0] !== 0x93 || magic !== "NUMPY") throw new Error("That is no .npy file.");
  const view = new DataView(bytes.buffer, bytes.byteOffset);
  const [length, begin] = bytes[6] === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const head = new TextDecoder("latin1").decode(bytes.subarray(begin, begin + length));
  const descr = /'descr':\s*'([^']+)'/.exec(head)?.[1] ?? "";
  const datatype = DATATYPES[descr];
  if (!datatype) throw new Error(`The array in that file has the type ${descr || "object"}; save it as numbers in little endian.`);
  if (/'fortran_order':\s*True/.test(head)) throw new Error("That array is stored column by column; save it with np.ascontiguousarray.");
  const shape = (/'shape':\s*\(([^)]*)\)/.exec(head)?.[1] ?? "").split(",").filter((dim) => dim.trim()).map(Number);
  return { shape, data: fromBinary(datatype, bytes.slice(begin + length)) };
}
