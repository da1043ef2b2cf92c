// Files and folders as a person gave them: folders walked, paths relative to what was dropped.

/** @typedef {{ file: File, path: string }} ChosenFile */

const LEFT_BEHIND = ["__MACOSX", "__pycache__"];

/**
 * Returns what was chosen with a file input.
 * @param {HTMLInputElement} input
 * @returns {ChosenFile[]}
 */
export function fromInput(input) {
  return [...(input.files ?? [])].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
}

/**
 * Takes what a person chooses with a file input, also before this module ran.
 * @param {HTMLInputElement} input
 * @param {(chosen: ChosenFile[]) => void} take
 */
export function watchInput(input, take) {
  const taken = () => {
    const chosen = fromInput(input);
    input.value = "";
    if (chosen.length) take(chosen);
  };
  input.addEventListener("change", taken);
  if (input.files?.length) taken();
}

/**
 * Returns what a drop carries. The entries must be taken at once: the browser empties the list when the event is over.
 * @param {DataTransfer} dataTransfer
 * @returns {Promise<ChosenFile[]>}
 */
export async function fromDrop(dataTransfer) {
  const entries = [...dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter((entry) => !!entry);
  if (!entries.length) return [...dataTransfer.files].map((file) => ({ file, path: file.name }));
  const found = await Promise.all(entries.map((entry) => walk(entry, "")));
  return found.flat();
}

/**
 * Returns the files at and under an entry.
 * @param {FileSystemEntry} entry
 * @param {string} under the path of its folder; "" for what was dropped itself
 * @returns {Promise<ChosenFile[]>}
 */
async function walk(entry, under) {
  const path = under ? `${under}/${entry.name}` : entry.name;
  if (entry.isFile) {
    /** @type {File} */
    const file = await new Promise((good, bad) => /** @type {FileSystemFileEntry} */ (entry).file(good, bad));
    return [{ file, path }];
  }
  const reader = /** @type {FileSystemDirectoryEntry} */ (entry).createReader();
  const found = [];
  for (;;) {
    // One call gives at most a hundred entries.
    /** @type {FileSystemEntry[]} */
    const entries = await new Promise((good, bad) => reader.readEntries(good, bad));
    if (!entries.length) return found;
    found.push(...(await Promise.all(entries.map((one) => walk(one, path)))).flat());
  }
}

/**
 * Takes away what file managers leave behind, and, where all files are of one folder, that folder's own name.
 * @param {ChosenFile[]} chosen
 * @returns {{ folder: string, files: ChosenFile[] }} the folder is "" where there is not exactly one
 */
export function tidy(chosen) {
  const kept = chosen.filter(({ path }) => !path.split("/").some(isLeftBehind));
  const tops = new Set(kept.map(({ path }) => (path.includes("/") ? path.split("/")[0] : "")));
  const [top] = tops;
  if (tops.size !== 1 || !top) return { folder: "", files: kept };
  return { folder: top, files: kept.map(({ file, path }) => ({ file, path: path.slice(top.length + 1) })) };
}

/** @param {string} part of a path */
function isLeftBehind(part) {
  return part.startsWith(".") || LEFT_BEHIND.includes(part);
}

/**
 * Proposes a model name: the folder's, or the file's without its ending.
 * @param {ChosenFile[]} chosen
 * @returns {string} "" where nothing of it can be a name
 */
export function proposedName(chosen) {
  const { folder, files } = tidy(chosen);
  const base = folder || files[0]?.path.replace(/(\.tar\.gz|\.[^.]+)$/i, "") || "";
  return base.replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^[^A-Za-z0-9]+/, "");
}

/**
 * Finds, for each file that an upload knows, the same one among those chosen again: of the same size, and of the same path,
 * or the end of it; the only file of an upload may have any name.
 * @template {{ path: string, size: number }} Known
 * @param {Known[]} known
 * @param {ChosenFile[]} chosen
 * @returns {(Known & { file: File | undefined })[]}
 */
export function matchFiles(known, chosen) {
  const { files } = tidy(chosen);
  return known.map((row) => {
    const same = files.find(
      ({ file, path }) =>
        file.size === row.size && (path === row.path || row.path.endsWith(`/${path}`) || known.length === 1),
    );
    return { ...row, file: same?.file };
  });
}

/**
 * Gives files that were chosen for missing ones the paths that these have: by their names, or one for one.
 * @param {ChosenFile[]} chosen
 * @param {string[]} missing paths
 * @returns {ChosenFile[]}
 */
export function asMissing(chosen, missing) {
  if (chosen.length === 1 && missing.length === 1) return [{ file: chosen[0].file, path: missing[0] }];
  return chosen.map(({ file, path }) => ({ file, path: missing.find((one) => one.split("/").at(-1) === file.name) ?? path }));
}
