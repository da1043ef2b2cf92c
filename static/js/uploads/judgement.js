// Judges chosen files by their names and first bytes, before they are sent. The page contains the table of formats with all its
// texts. repository/files/foreign_formats.py applies the same rules in the dashboard.

import { missingWeights } from "./onnx.js";

/** @import { ChosenFile } from "./files.js" */

/**
 * A kind of file that no backend serves.
 * @typedef {object} ForeignFormat
 * @property {string} name
 * @property {string} title
 * @property {string} sentence the problem and its solution, without a full stop
 * @property {string} code lines of code for the solution; "" for none
 * @property {string[]} endings the extensions of such files, in lower case
 * @property {[number, string][][]} starts possible beginnings; each is a list of [offset, hexadecimal bytes] that must all match
 * @property {string} zip_holds the end of a name that must be in a zip archive; "" for other files
 * @property {string[]} zip_lacks ends of names that must not be in a zip archive
 */

/**
 * @typedef {object} FormatTable
 * @property {string[]} model_endings
 * @property {string[]} model_names
 * @property {string[]} archive_endings the extensions of archives that a backend reads without unpacking
 * @property {number} head_bytes
 * @property {ForeignFormat[]} formats the more specific formats first
 * @property {Record<string, string[]>} [converted] the formats that a recipe may take, each with ends of names, one of which must
 *   be among the files; [] if the format is enough
 */

/**
 * The reason why files cannot be published: a file that is no model, or missing files with the weights of a model.
 * @typedef {object} Judgement
 * @property {string} path the path of the file that decides
 * @property {ForeignFormat | null} kind
 * @property {string[]} missing the paths of missing files
 */

const POINTER_BYTES = 1024; // a pointer of Git LFS is shorter
const MAX_DIRECTORY = 1024 * 1024;
const END_BYTES = 22 + 65535; // the end record of a zip archive with the longest comment
const END_SIGNATURE = 0x06054b50;
const ENTRY_SIGNATURE = 0x02014b50;
const ENTRY_BYTES = 46;

/**
 * Returns the reason why the files cannot be published, as far as the browser can find one; null if it finds none.
 * @param {ChosenFile[]} files
 * @param {FormatTable} table
 * @returns {Promise<Judgement | null>}
 */
export async function judge(files, table) {
  for (const { file, path } of files) {
    const kind = file.size < POINTER_BYTES ? await byContent(file, table) : null;
    if (kind?.name === "git_lfs_pointer") return { path, kind, missing: [] };
  }
  const models = files.filter(({ path }) => mayHoldModel(path, table));
  if (!models.length) return noModel(files, table);
  for (const { file, path } of models) {
    // An archive may have any content, because the code of its backend reads it.
    const kind = endsAs(path, table.archive_endings) ? await noArchive(file, table) : await byContent(file, table);
    if (kind && (models.length === 1 || endsAs(path, [".onnx"]))) return { path, kind, missing: [] };
    const missing = endsAs(path, [".onnx"]) ? await missingWeights(file, path, files) : [];
    if (missing.length) return { path, kind: null, missing };
  }
  return null;
}

/**
 * Returns whether a recipe may make a model of the files, although no backend serves them.
 * @param {Judgement} judgement
 * @param {ChosenFile[]} files
 * @param {FormatTable} table
 */
export function mayBeConverted({ kind }, files, table) {
  const beside = table.converted?.[kind?.name ?? ""];
  return beside !== undefined && (!beside.length || files.some(({ path }) => endsAs(path, beside)));
}

/**
 * @param {ChosenFile[]} files files that are no models by their names
 * @param {FormatTable} table
 * @returns {Promise<Judgement>}
 */
async function noModel(files, table) {
  const found = [];
  for (const { file, path } of files) {
    const kind = (await byContent(file, table)) ?? table.formats.find(({ endings }) => endsAs(path, endings));
    if (kind) found.push({ path, kind, missing: [] });
  }
  // The most specific format comes first, because a folder with weights also has tokenizers and read-me files.
  found.sort((one, other) => table.formats.indexOf(one.kind) - table.formats.indexOf(other.kind));
  const unknown = table.formats.find(({ name }) => name === "unknown") ?? null;
  return found[0] ?? { path: files[0].path, kind: unknown, missing: [] };
}

/**
 * @param {string} path
 * @param {FormatTable} table
 */
function mayHoldModel(path, table) {
  return endsAs(path, table.model_endings) || table.model_names.includes(nameOf(path).toLowerCase());
}

/**
 * @param {string} path
 * @param {string[]} endings
 */
function endsAs(path, endings) {
  const name = nameOf(path).toLowerCase();
  return endings.some((ending) => name.endsWith(ending));
}

/** @param {string} path */
function nameOf(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/**
 * Returns the foreign format of a file, by its first bytes, or by the names in a zip archive.
 * @param {Blob} file
 * @param {FormatTable} table
 * @returns {Promise<ForeignFormat | null>}
 */
async function byContent(file, table) {
  const head = new Uint8Array(await file.slice(0, table.head_bytes).arrayBuffer());
  if (fits(head, [[0, "504b0304"]])) {
    const names = await zipNames(file);
    return table.formats.find((kind) => kind.zip_holds && holds(names, kind)) ?? null;
  }
  return table.formats.find(({ starts }) => starts.some((start) => fits(head, start))) ?? null;
}

/**
 * Returns the foreign format of a file that has the name of a backend's archive; null if it may be such an archive.
 * @param {Blob} file
 * @param {FormatTable} table
 * @returns {Promise<ForeignFormat | null>}
 */
async function noArchive(file, table) {
  const head = new Uint8Array(await file.slice(0, table.head_bytes).arrayBuffer());
  if (fits(head, [[0, "504b0304"]]) || fits(head, [[0, "1f8b"]])) return null;
  return table.formats.find(({ starts }) => starts.some((start) => fits(head, start))) ?? null;
}

/**
 * @param {Uint8Array} head
 * @param {[number, string][]} start
 */
function fits(head, start) {
  return start.every(([offset, expected]) => {
    const bytes = expected.match(/../g) ?? [];
    return bytes.every((byte, index) => head[offset + index] === Number.parseInt(byte, 16));
  });
}

/**
 * @param {string[]} names
 * @param {ForeignFormat} kind
 */
function holds(names, kind) {
  const lacks = kind.zip_lacks;
  return names.some((name) => name.endsWith(kind.zip_holds)) && !names.some((name) => lacks.some((end) => name.endsWith(end)));
}

/**
 * Returns the names in a zip archive; [] if it is damaged or its directory is very large.
 * @param {Blob} file
 * @returns {Promise<string[]>}
 */
export async function zipNames(file) {
  const tail = new DataView(await file.slice(Math.max(0, file.size - END_BYTES)).arrayBuffer());
  for (let at = tail.byteLength - 22; at >= 0; at -= 1) {
    if (tail.getUint32(at, true) !== END_SIGNATURE) continue;
    const [size, offset] = [tail.getUint32(at + 12, true), tail.getUint32(at + 16, true)];
    if (size > MAX_DIRECTORY || offset + size > file.size) return [];
    return entryNames(new DataView(await file.slice(offset, offset + size).arrayBuffer()));
  }
  return [];
}

/**
 * @param {DataView} directory
 * @returns {string[]}
 */
function entryNames(directory) {
  const names = [];
  for (let at = 0; at + ENTRY_BYTES <= directory.byteLength && directory.getUint32(at, true) === ENTRY_SIGNATURE; ) {
    const [name, extra, comment] = [28, 30, 32].map((place) => directory.getUint16(at + place, true));
    const end = Math.min(at + ENTRY_BYTES + name, directory.byteLength);
    names.push(new TextDecoder().decode(new Uint8Array(directory.buffer, at + ENTRY_BYTES, end - at - ENTRY_BYTES)));
    at += ENTRY_BYTES + name + extra + comment;
  }
  return names;
}
