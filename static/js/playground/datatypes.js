// The datatypes of the V2 protocol, and their elements in the binary data extension: little endian, row by row.
// https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md

/**
 * One element of a tensor. BYTES that are not UTF-8 are a Uint8Array; integers that are too large for a number are a bigint.
 * @typedef {number | string | boolean | bigint | Uint8Array} Element
 * @typedef {ArrayLike<Element>} Elements the elements of a tensor, flat, row by row
 */

/** @type {Record<string, number>} datatype -> bytes of an element; BYTES have no fixed number */
const WIDTHS = {
  BOOL: 1, UINT8: 1, UINT16: 2, UINT32: 4, UINT64: 8, INT8: 1, INT16: 2, INT32: 4, INT64: 8, FP16: 2, BF16: 2, FP32: 4, FP64: 8,
};
const DECODER = new TextDecoder("utf-8", { fatal: true });

/**
 * Returns the number of bytes of an element on the wire; 0 for BYTES, whose elements differ in length.
 * @param {string} datatype
 */
export function elementWidth(datatype) {
  return WIDTHS[datatype] ?? 0;
}

/**
 * Returns whether JSON can carry these elements. It cannot carry FP16 and BF16, infinite numbers and NaN, large integers, and
 * bytes that are not text.
 * @param {string} datatype
 * @param {Elements} elements
 */
export function fitsJson(datatype, elements) {
  if (datatype === "FP16" || datatype === "BF16") return false;
  for (let index = 0; index < elements.length; index += 1) {
    const element = elements[index];
    if (typeof element === "bigint" || typeof element === "object") return false;
    if (typeof element === "number" && !Number.isFinite(element)) return false;
  }
  return true;
}

/**
 * Returns the bytes of elements on the wire.
 * @param {string} datatype
 * @param {Elements} elements
 * @returns {Uint8Array<ArrayBuffer>}
 */
export function toBinary(datatype, elements) {
  if (datatype === "BYTES") return bytesToBinary(elements);
  const bytes = new Uint8Array(elements.length * elementWidth(datatype));
  const numbers = /** @type {ArrayLike<number>} */ (elements);
  if (datatype === "FP32") new Float32Array(bytes.buffer).set(numbers);
  else if (datatype === "FP64") new Float64Array(bytes.buffer).set(numbers);
  else if (datatype === "FP16") new Uint16Array(bytes.buffer).set(Uint16Array.from(numbers, halfBits));
  else if (datatype === "BF16") new Uint16Array(bytes.buffer).set(Uint16Array.from(numbers, brainBits));
  else if (/64$/.test(datatype)) new BigInt64Array(bytes.buffer).set(BigInt64Array.from(Array.from(elements, bigOf)));
  else if (/32$/.test(datatype)) new Int32Array(bytes.buffer).set(Int32Array.from(numbers, (one) => one | 0));
  else if (/16$/.test(datatype)) new Int16Array(bytes.buffer).set(numbers);
  else bytes.set(Uint8Array.from(elements, Number));
  return bytes;
}

/**
 * Returns the elements from bytes on the wire.
 * @param {string} datatype
 * @param {Uint8Array<ArrayBuffer>} bytes
 * @returns {Elements}
 */
export function fromBinary(datatype, bytes) {
  const { buffer } = bytes.slice(); // a copy, because typed arrays must begin at a multiple of their width
  switch (datatype) {
    case "BOOL": return Array.from(bytes, Boolean);
    case "UINT8": return new Uint8Array(buffer);
    case "UINT16": return new Uint16Array(buffer);
    case "UINT32": return new Uint32Array(buffer);
    case "UINT64": return Array.from(new BigUint64Array(buffer), plainOf);
    case "INT8": return new Int8Array(buffer);
    case "INT16": return new Int16Array(buffer);
    case "INT32": return new Int32Array(buffer);
    case "INT64": return Array.from(new BigInt64Array(buffer), plainOf);
    case "FP16": return Float32Array.from(new Uint16Array(buffer), halfOf);
    case "BF16": return new Float32Array(Uint32Array.from(new Uint16Array(buffer), (bits) => bits << 16).buffer);
    case "FP32": return new Float32Array(buffer);
    case "FP64": return new Float64Array(buffer);
    default: return binaryToBytes(bytes);
  }
}

/** @param {Elements} elements */
function bytesToBinary(elements) {
  const parts = Array.from(elements, (one) => (one instanceof Uint8Array ? one : new TextEncoder().encode(String(one))));
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
  let at = 0;
  for (const part of parts) {
    new DataView(whole.buffer).setUint32(at, part.length, true);
    whole.set(part, at + 4);
    at += 4 + part.length;
  }
  return whole;
}

/** @param {Uint8Array} bytes */
function binaryToBytes(bytes) {
  /** @type {Element[]} */
  const elements = [];
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at + 4 <= bytes.length; ) {
    const length = view.getUint32(at, true);
    elements.push(textOf(bytes.slice(at + 4, at + 4 + length)));
    at += 4 + length;
  }
  return elements;
}

/**
 * @param {Uint8Array} bytes
 * @returns {Element}
 */
function textOf(bytes) {
  try {
    return DECODER.decode(bytes);
  } catch {
    return bytes;
  }
}

/** @param {Element} element */
function bigOf(element) {
  return BigInt.asIntN(64, BigInt(/** @type {number | bigint | boolean} */ (element)));
}

/** @param {bigint} value */
function plainOf(value) {
  const plain = Number(value);
  return Number.isSafeInteger(plain) ? plain : value;
}

const FLOAT = new Float32Array(1);
const BITS = new Uint32Array(FLOAT.buffer);

/**
 * Returns the bits of the nearest BF16, ties to even.
 * @param {number} value
 */
function brainBits(value) {
  FLOAT[0] = value;
  if (Number.isNaN(value)) return 0x7fc0;
  return (BITS[0] + 0x7fff + ((BITS[0] >>> 16) & 1)) >>> 16;
}

/**
 * Returns the bits of the nearest FP16, ties to even (IEEE 754).
 * @param {number} value
 */
function halfBits(value) {
  const sign = value < 0 || Object.is(value, -0) ? 0x8000 : 0;
  const size = Math.abs(value);
  if (Number.isNaN(value)) return 0x7e00;
  if (size >= 65520) return sign | 0x7c00;
  // Below 2^-14, all steps have the same width as at 2^-14: the bits of a subnormal count these steps from 0.
  const exponent = Math.max(Math.floor(Math.log2(size || 1e-9)), -14);
  const steps = roundEven(size / 2 ** (exponent - 10));
  return sign | (steps + (exponent + 14) * 1024);
}

/** @param {number} bits the bits of an FP16 */
function halfOf(bits) {
  const exponent = (bits >> 10) & 31;
  const fraction = bits & 1023;
  const size = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? (1024 + fraction) * 2 ** (exponent - 25) : fraction * 2 ** -24;
  return bits & 0x8000 ? -size : size;
}

/** @param {number} value a number of at least 0 */
function roundEven(value) {
  const below = Math.floor(value);
  const rest = value - below;
  return rest > 0.5 || (rest === 0.5 && below % 2 === 1) ? below + 1 : below;
}
