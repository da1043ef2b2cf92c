// The origin of an input's elements. From the origin, code can generate the elements instead of listing them.

/**
 * @typedef {import("./tensors.js").ImageLayout} ImageLayout
 * @typedef {import("./tensors.js").PixelScale} PixelScale
 *
 * @typedef {"zeros" | "ones" | "random"} Filling
 *
 * @typedef {object} FilledOrigin
 * @property {Filling} kind
 *
 * @typedef {object} PictureOrigin
 * @property {"picture"} kind
 * @property {string | null} file the name of the file; null for a grey picture
 * @property {ImageLayout} layout
 * @property {PixelScale} scale
 *
 * @typedef {object} FileOrigin
 * @property {"npy" | "bytes"} kind an array that numpy wrote, or the bytes of any file as the only element of BYTES
 * @property {string} file
 *
 * @typedef {FilledOrigin | PictureOrigin | FileOrigin} Origin
 */

import { elementWidth } from "./datatypes.js";
import { elementCount } from "./tensors.js";

/** @typedef {import("./datatypes.js").Elements} Elements */

export const BYTES_MOST = 48 << 20; // the largest tensor that a browser sends through the dashboard

/**
 * Returns generated elements. Throws an Error with a sentence if there are too many to send.
 * @param {Filling} kind
 * @param {string} datatype any except BYTES
 * @param {number[]} shape
 * @returns {Elements}
 */
export function filled(kind, datatype, shape) {
  const count = elementCount(shape);
  const bytes = count * elementWidth(datatype);
  if (bytes > BYTES_MOST) {
    const [has, most] = [bytes, BYTES_MOST].map((size) => `${Math.round(size / (1 << 20))} MiB`);
    throw new Error(`This tensor would have ${has}, and the browser sends at most ${most}; run the code below instead.`);
  }
  const elements = /64$/.test(datatype) && datatype !== "FP64" ? new Float64Array(count) : arrayFor(datatype, count);
  if (kind === "ones") elements.fill(1);
  if (kind === "random") {
    const whole = /INT/.test(datatype);
    for (let index = 0; index < count; index += 1) {
      elements[index] = whole ? Math.floor(Math.random() * 10) : datatype === "BOOL" ? Number(Math.random() < 0.5) : Math.random();
    }
  }
  return datatype === "BOOL" ? Array.from(elements, Boolean) : elements;
}

/**
 * @param {string} datatype
 * @param {number} count
 */
function arrayFor(datatype, count) {
  return datatype === "FP64" ? new Float64Array(count) : new Float32Array(count);
}
