// Chooses the modes of input for a tensor, by its name, datatype and shape, and converts texts and pixels to elements.

import { messageOf } from "../core/request.js";

/**
 * @typedef {import("./datatypes.js").Element} Element
 * @typedef {import("./datatypes.js").Elements} Elements
 * @typedef {Element | NestedList[]} NestedList a list of lists of elements, as deep as the tensor's shape is long
 * @typedef {"draw" | "picture" | "table" | "grid" | "text" | "file" | "fill" | "json"} Mode a mode of input
 * @typedef {"unit" | "byte" | "imagenet"} PixelScale 0 to 1, 0 to 255, or ImageNet's mean and deviation
 */

/**
 * An input or output of a model's signature.
 * @typedef {object} TensorSpec
 * @property {string} name
 * @property {string} datatype a datatype of the V2 protocol
 * @property {(number | string)[]} shape -1 for a dimension that each request chooses
 *
 * @typedef {object} ImageLayout
 * @property {number} channels 1 or 3
 * @property {number} height
 * @property {number} width
 * @property {boolean} first whether the channels come before the pixels
 */

const GRID_MOST = 128;
const PICTURE_NAME = /png|jpe?g|image|picture|pixel|digit/i;
const OPEN_SIDE = 224; // the pixels of a side of variable size: most models of pictures were trained with this size
const TABLE_WIDTH_MOST = 256;
const TABLE_ROWS_MOST = 200; // the most rows of a table, if the signature fixes the number of rows
const WHOLE = /^U?INT/;
const IMAGENET_MEAN = [0.485, 0.456, 0.406];
const IMAGENET_DEVIATION = [0.229, 0.224, 0.225];
const LUMA = [0.299, 0.587, 0.114]; // ITU-R BT.601

/**
 * Returns the shape of a request of one row: variable dimensions are 1.
 * @param {(number | string)[]} shape
 * @returns {number[]}
 */
export function fixedShape(shape) {
  return shape.map(Number).map((dim) => (dim < 0 ? 1 : dim));
}

/**
 * Returns the number of elements of a shape.
 * @param {number[]} shape
 * @returns {number}
 */
export function elementCount(shape) {
  return shape.reduce((product, dim) => product * dim, 1);
}

/**
 * Returns the modes in which a person can give a tensor, the most natural mode first. The first mode gives a valid tensor, of any
 * size, even without input.
 * @param {TensorSpec} tensor
 * @returns {Mode[]}
 */
export function inputModes({ name, datatype, shape }) {
  const fixed = fixedShape(shape);
  const elements = elementCount(fixed);
  const table = isTable(shape.map(Number), fixed);
  if (datatype === "BYTES") {
    if (elements !== 1) return table ? ["table", "json"] : ["json"];
    if (PICTURE_NAME.test(name)) return ["draw", "file", "text"];
    return table && Number(shape[0]) < 0 ? ["text", "table", "file", "json"] : ["text", "file", "json"];
  }
  const square = isSquare(fixed, 8) || isSquare(fixed, 28);
  const open = shape.slice(-2).some((dim) => Number(dim) < 0);
  /** @type {Mode[]} */
  const modes = [];
  if (table) modes.push("table");
  else if ((open || !square) && imageLayout({ name, shape })) modes.push("picture");
  else if (elements <= GRID_MOST) modes.push("grid");
  // A row of 64 numbers is more often columns than pixels.
  if (square && table && !PICTURE_NAME.test(name)) modes.push("draw");
  else if (square && !modes.includes("picture")) modes.unshift("draw");
  return [...modes, "fill", "file", "json"];
}

/**
 * Returns whether a tensor is best shown as a table: rows of columns, or a list of any length.
 * @param {number[]} shape -1 for variable dimensions
 * @param {number[]} fixed
 */
function isTable(shape, fixed) {
  const [rows, width] = shape.length === 2 ? fixed : [1, fixed[0]];
  const fits = rows > 0 && rows <= TABLE_ROWS_MOST && width > 0 && width <= TABLE_WIDTH_MOST;
  return fits && (shape.length === 2 || (shape.length === 1 && (shape[0] < 0 || shape[0] <= TABLE_ROWS_MOST)));
}

/**
 * Returns whether a shape is one picture of `side` x `side` pixels, or all of its pixels in one row.
 * @param {number[]} shape
 * @param {number} side
 */
function isSquare(shape, side) {
  return elementCount(shape) === side * side && (shape.at(-2) === side || shape.at(-1) === side * side);
}

/**
 * Returns the layout of a picture; null if the shape is not a picture's. Sides of variable size have OPEN_SIDE pixels. If
 * the number of channels is variable, too, only the name decides.
 * @param {Pick<TensorSpec, "name" | "shape">} tensor
 * @returns {ImageLayout | null}
 */
export function imageLayout({ name, shape }) {
  if (shape.length < 3) return null;
  const [a, b, c] = shape.slice(-3).map(Number);
  const named = PICTURE_NAME.test(name);
  /** @type {(...sides: number[]) => boolean} */
  const fits = (...sides) => sides.every((side) => side >= 16 || (side < 0 && (named || shape.length === 4)));
  /** @type {(channels: number, ...sides: number[]) => boolean} */
  const colours = (channels, ...sides) => channels === 3 || (channels === 1 && (named || sides.every((side) => side > 0)));
  const pixels = (/** @type {number} */ side) => (side < 0 ? OPEN_SIDE : side);
  if (colours(a, b, c) && fits(b, c)) return { channels: a, height: pixels(b), width: pixels(c), first: true };
  if (colours(c, a, b) && fits(a, b)) return { channels: c, height: pixels(a), width: pixels(b), first: false };
  const open = named && shape.length === 4 && Math.max(a, b, c) < 0;
  return open ? { channels: 3, height: OPEN_SIDE, width: OPEN_SIDE, first: true } : null;
}

/**
 * Returns the shape of one picture of this layout.
 * @param {(number | string)[]} shape the shape in the signature
 * @param {ImageLayout} layout
 */
export function pictureShape(shape, { channels, height, width, first }) {
  return [...fixedShape(shape.slice(0, -3)), ...(first ? [channels, height, width] : [height, width, channels])];
}

/**
 * Returns the pixels of a picture as the elements of a tensor. A single channel is the luma of the three colours.
 * @param {ArrayLike<number>} rgba four bytes for each pixel, row by row
 * @param {ImageLayout} layout
 * @param {PixelScale} scale
 * @returns {number[]}
 */
export function pixelElements(rgba, { channels, height, width, first }, scale) {
  const area = width * height;
  /**
   * @param {number} pixel
   * @param {number} channel
   */
  const element = (pixel, channel) => {
    const raw = channels === 1 ? luma(rgba, pixel * 4) : rgba[pixel * 4 + channel];
    if (scale === "byte") return Math.round(raw);
    const [mean, deviation] = scale === "imagenet" ? [IMAGENET_MEAN[channel], IMAGENET_DEVIATION[channel]] : [0, 1];
    return Math.round(((raw / 255 - mean) / deviation) * 1e4) / 1e4;
  };
  return Array.from({ length: area * channels }, (_, index) =>
    first ? element(index % area, Math.floor(index / area)) : element(Math.floor(index / channels), index % channels),
  );
}

/**
 * @param {ArrayLike<number>} rgba
 * @param {number} at the index at which the pixel begins
 */
function luma(rgba, at) {
  return LUMA[0] * rgba[at] + LUMA[1] * rgba[at + 1] + LUMA[2] * rgba[at + 2];
}

/**
 * Returns the element that a text means. Throws an Error with a sentence if the text is no element.
 * @param {string} text a number, with a point or a comma; for BOOL, "0", "false" and nothing are false
 * @param {string} datatype
 * @returns {Element}
 */
export function parseElement(text, datatype) {
  const plain = text.trim();
  if (datatype === "BYTES") return text;
  if (datatype === "BOOL") return plain !== "0" && plain.toLowerCase() !== "false" && plain !== "";
  if (!WHOLE.test(datatype) && /^[-+]?(nan|inf(inity)?)$/i.test(plain)) {
    return /nan/i.test(plain) ? NaN : plain.startsWith("-") ? -Infinity : Infinity;
  }
  const value = Number(plain.replace(",", "."));
  if (plain === "" || Number.isNaN(value)) throw new Error(`“${text}” is not a number.`);
  if (!WHOLE.test(datatype)) return value;
  if (!Number.isInteger(value)) throw new Error(`${text} is not a whole number, as ${datatype} needs.`);
  const exact = Number.isSafeInteger(value) || !/^[-+]?\d+$/.test(plain) ? value : BigInt(plain);
  const [low, high] = rangeOf(datatype);
  if (exact < low || exact > high) throw new Error(`${text} is outside of ${datatype}, which goes from ${low} to ${high}.`);
  return exact;
}

/** @param {string} datatype a datatype of whole numbers */
function rangeOf(datatype) {
  const bits = BigInt(datatype.replace(/\D/g, ""));
  return datatype.startsWith("U") ? [0n, 2n ** bits - 1n] : [-(2n ** (bits - 1n)), 2n ** (bits - 1n) - 1n];
}

/**
 * Reads a tensor from JSON. The brackets give its shape. A flat list gets the shape in the signature, with one variable dimension
 * computed from the length of the list. A single value fills every element. Throws an Error with a sentence if the text is not
 * JSON, or if the lists have different lengths.
 * @param {string} text
 * @param {number[]} shape the shape in the signature, -1 for variable dimensions
 * @returns {{ shape: number[], data: Element[] }}
 */
export function parseJson(text, shape) {
  let value;
  try {
    value = /** @type {NestedList} */ (JSON.parse(text));
  } catch (error) {
    throw new Error(`This is not JSON: ${messageOf(error)}.`);
  }
  if (value === null || (typeof value === "object" && !Array.isArray(value))) {
    throw new Error("Give a list in brackets, or one value for all elements.");
  }
  const fixed = fixedShape(shape);
  if (!Array.isArray(value)) return { shape: fixed, data: Array(elementCount(fixed)).fill(value) };
  const said = [];
  for (let part = /** @type {NestedList} */ (value); Array.isArray(part); [part] = part) said.push(part.length);
  refuseUneven(value, said);
  const data = flat(value);
  if (data.some((one) => typeof one === "number" && Number.isInteger(one) && !Number.isSafeInteger(one))) {
    throw new Error("A whole number here has more digits than JSON keeps in a browser; give it as numbers instead.");
  }
  return { shape: said.length === shape.length ? said : shapeFor(data.length, shape), data };
}

/**
 * @param {NestedList[]} list
 * @param {number[]} lengths the lengths of the first list at each depth
 */
function refuseUneven(list, [length, ...inner]) {
  const wrong = list.findIndex((one) => Array.isArray(one) !== inner.length > 0 || (Array.isArray(one) && one.length !== inner[0]));
  if (wrong >= 0) throw new Error(`The lists are uneven: the first of ${length} is not as long as number ${wrong + 1}.`);
  if (inner.length) for (const one of list) refuseUneven(/** @type {NestedList[]} */ (one), inner);
}

/**
 * Returns the shape for a number of elements: the first variable dimension has the size that remains, all others are 1.
 * @param {number} count
 * @param {number[]} shape
 */
export function shapeFor(count, shape) {
  const open = shape.findIndex((dim) => dim < 0);
  const rest = elementCount(fixedShape(shape));
  if (open < 0 || !rest || count % rest) return fixedShape(shape);
  return fixedShape(shape).map((dim, index) => (index === open ? count / rest : dim));
}

/**
 * Returns the elements of a nested list, row by row.
 * @param {NestedList} value
 * @returns {Element[]}
 */
export function flat(value) {
  return Array.isArray(value) ? value.flatMap(flat) : [value];
}

/**
 * Returns a flat list as nested lists.
 * @param {Element[]} elements row by row
 * @param {number[]} shape
 * @returns {NestedList[]}
 */
export function nest(elements, shape) {
  if (shape.length <= 1) return elements.slice(0, shape[0] ?? elements.length);
  const step = elements.length / shape[0];
  return Array.from({ length: shape[0] }, (_, index) => nest(elements.slice(index * step, (index + 1) * step), shape.slice(1)));
}
