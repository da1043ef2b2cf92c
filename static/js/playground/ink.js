// Turns a drawing into an image for a model, in the way the UCI digits were made. examples/models/digits_preprocess does the same
// with pictures.

/**
 * @typedef {object} Box
 * @property {number} x the leftmost pixel
 * @property {number} y the uppermost pixel
 * @property {number} width
 * @property {number} height
 */

const INKED = 0.3; // the least ink of a drawn pixel
const FINE = 4; // each block of the image is the mean of FINE x FINE points

/**
 * Scales a drawing until it is as high (or as wide) as the image, puts it into the middle, and takes the mean ink of each
 * block.
 * @param {Float32Array} ink `size` x `size` pixels, from 0 to 1
 * @param {number} size
 * @param {number} side the side of the image in pixels
 * @returns {Float32Array} `side` x `side` numbers, of which the largest is 1; all 0 for an empty drawing
 */
export function imageOfInk(ink, size, side) {
  const box = inkBox(ink, size);
  const blocks = new Float32Array(side * side);
  if (!box) return blocks;
  const fine = side * FINE;
  const scale = fine / Math.max(box.width, box.height);
  const [width, height] = [Math.max(Math.round(box.width * scale), 1), Math.max(Math.round(box.height * scale), 1)];
  const [left, top] = [Math.floor((fine - width) / 2), Math.floor((fine - height) / 2)];
  const [pixelWidth, pixelHeight] = [box.width / width, box.height / height];
  for (let y = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1) {
      const pixel = { x: box.x + x * pixelWidth, y: box.y + y * pixelHeight, width: pixelWidth, height: pixelHeight };
      const block = Math.floor((top + y) / FINE) * side + Math.floor((left + x) / FINE);
      blocks[block] += meanInk(ink, size, pixel) / FINE ** 2;
    }
  }
  const most = Math.max(...blocks, 1e-6);
  return blocks.map((value) => value / most);
}

/**
 * Returns the mean ink of every pixel that an area touches.
 * @param {Float32Array} ink
 * @param {number} size
 * @param {Box} area an area whose numbers need not be whole
 */
function meanInk(ink, size, { x, y, width, height }) {
  const [right, bottom] = [Math.min(Math.ceil(x + width), size), Math.min(Math.ceil(y + height), size)];
  let [sum, count] = [0, 0];
  for (let row = Math.floor(y); row < bottom; row += 1) {
    for (let column = Math.floor(x); column < right; column += 1) {
      sum += ink[row * size + column];
      count += 1;
    }
  }
  return count ? sum / count : 0;
}

/**
 * Returns the bounding box of a drawing; null for an empty drawing.
 * @param {Float32Array} ink
 * @param {number} size
 * @returns {Box | null}
 */
export function inkBox(ink, size) {
  let [left, right, top, bottom] = [size, -1, size, -1];
  for (let index = 0; index < ink.length; index += 1) {
    if (ink[index] < INKED) continue;
    const [x, y] = [index % size, Math.floor(index / size)];
    [left, right, top, bottom] = [Math.min(left, x), Math.max(right, x), Math.min(top, y), Math.max(bottom, y)];
  }
  return right < 0 ? null : { x: left, y: top, width: right - left + 1, height: bottom - top + 1 };
}
