// What a tensor's name, datatype and shape say of how a person can give it, and how what was given becomes its elements.

/**
 * @typedef {import("./wire.js").Element} Element
 * @typedef {Element | NestedList[]} NestedList a list of lists of elements, as deep as the tensor's shape is long
 * @typedef {"draw" | "picture" | "grid" | "text" | "file" | "json"} Mode one way to give a tensor
 * @typedef {"unit" | "byte" | "imagenet"} PixelScale 0 to 1, 0 to 255, or ImageNet's mean and deviation
 */

/**
 * An input or output of a model's signature.
 * @typedef {object} TensorSpec
 * @property {string} name
 * @property {string} datatype as the V2 protocol names it
 * @property {(number | string)[]} shape -1 for a dimension that each request chooses
 *
 * @typedef {object} ImageLayout
 * @property {number} channels 1 or 3
 * @property {number} height
 * @property {number} width
 * @property {boolean} first whether the channels come before the pixels
 */

const GRID_MOST = 128;
const WHOLE = /^U?INT/;
const IMAGENET_MEAN = [0.485, 0.456, 0.406];
const IMAGENET_DEVIATION = [0.229, 0.224, 0.225];
const LUMA = [0.299, 0.587, 0.114]; // ITU-R BT.601

/**
 * Returns the shape of a request of one row: a dimension that each request chooses is 1.
 * @param {(number | string)[]} shape
 * @returns {number[]}
 */
export function fixedShape(shape) {
  return shape.map(Number).map((dim) => (dim < 0 ? 1 : dim));
}

/**
 * Returns how many elements a tensor of this shape has.
 * @param {number[]} shape
 * @returns {number}
 */
export function elementCount(shape) {
  return shape.reduce((product, dim) => product * dim, 1);
}

/**
 * Returns the ways in which a person can give a tensor, the most natural first.
 * @param {TensorSpec} tensor
 * @returns {Mode[]}
 */
export function inputModes({ name, datatype, shape }) {
  const fixed = fixedShape(shape);
  const elements = elementCount(fixed);
  if (datatype === "BYTES") {
    if (elements !== 1) return ["text", "json"];
    return /png|jpe?g|image|picture|digit/i.test(name) ? ["draw", "file", "text"] : ["text", "file", "json"];
  }
  /** @type {Mode[]} */
  const modes = [];
  const square = isSquare(fixed, 8) || isSquare(fixed, 28);
  if (square) modes.push("draw");
  else if (imageLayout(shape.map(Number))) modes.push("picture");
  if (elements <= GRID_MOST) modes.push("grid");
  return [...modes, "json"];
}

/**
 * Says whether a shape is one picture of `side` x `side` pixels, or all of its pixels in one row.
 * @param {number[]} shape
 * @param {number} side
 */
function isSquare(shape, side) {
  return elementCount(shape) === side * side && (shape.at(-2) === side || shape.at(-1) === side * side);
}

/**
 * Returns where the channels and pixels of a picture are; null for a shape that is not a picture's.
 * @param {number[]} shape
 * @returns {ImageLayout | null}
 */
export function imageLayout(shape) {
  const [a, b, c] = shape.slice(-3);
  if (shape.length < 3) return null;
  if ([1, 3].includes(a) && b >= 16 && c >= 16) return { channels: a, height: b, width: c, first: true };
  return [1, 3].includes(c) && a >= 16 && b >= 16 ? { channels: c, height: a, width: b, first: false } : null;
}

/**
 * Returns a picture's pixels as the elements of a tensor. One channel is the luma of the three.
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
 * @param {number} at where the pixel begins
 */
function luma(rgba, at) {
  return LUMA[0] * rgba[at] + LUMA[1] * rgba[at + 1] + LUMA[2] * rgba[at + 2];
}

/**
 * Returns the element that a text stands for; throws an Error with a sentence where it stands for none.
 * @param {string} text a number, with a point or a comma; for BOOL, "0", "false" and nothing are false
 * @param {string} datatype
 * @returns {number | boolean}
 */
export function parseElement(text, datatype) {
  const plain = text.trim();
  if (datatype === "BOOL") return plain !== "0" && plain !== "false" && plain !== "";
  const value = Number(plain.replace(",", "."));
  if (plain === "" || Number.isNaN(value)) throw new Error(`“${text}” is not a number.`);
  if (WHOLE.test(datatype) && !Number.isInteger(value)) throw new Error(`${text} is not a whole number, as ${datatype} needs.`);
  return value;
}

/**
 * Reads a tensor written as JSON. The brackets say its shape; a list of another depth takes the signature's.
 * Throws an Error with a sentence for what is not JSON.
 * @param {string} text
 * @param {number[]} shape the signature's, without open dimensions
 * @returns {{ shape: number[], data: Element[] }}
 */
export function parseJson(text, shape) {
  let value;
  try {
    value = /** @type {NestedList} */ (JSON.parse(text));
  } catch (error) {
    throw new Error(`This is not JSON: ${error instanceof Error ? error.message : error}.`);
  }
  const said = [];
  for (let part = value; Array.isArray(part); [part] = part) said.push(part.length);
  return { shape: said.length === shape.length ? said : shape, data: flat(value) };
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
 * Returns a flat list in nested brackets.
 * @param {Element[]} elements row by row
 * @param {number[]} shape
 * @returns {NestedList[]}
 */
export function nest(elements, shape) {
  if (shape.length <= 1) return elements.slice(0, shape[0] ?? elements.length);
  const step = elements.length / shape[0];
  return Array.from({ length: shape[0] }, (_, index) => nest(elements.slice(index * step, (index + 1) * step), shape.slice(1)));
}
