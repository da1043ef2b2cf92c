// Chosen and dropped files and folders: walks through folders, and makes paths relative to the dropped folder.

/** @typedef {{ file: File, path: string }} ChosenFile */

const LEFT_BEHIND = ["__MACOSX", "__pycache__"];

/**
 * Returns the files that were chosen with a file input.
 * @param {HTMLInputElement} input
 * @returns {ChosenFile[]}
 */
export function fromInput(input) {
  return [...(input.files ?? [])].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
}

/**
 * Takes the files that a person chooses with a file input, including files that were chosen before this module ran.
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
 * Returns the files of a drop. The entries must be taken immediately, because the browser empties the list after the event.
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
 * @param {string} under the path of its folder; "" for a dropped entry itself
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
    // One call returns at most a hundred entries.
    /** @type {FileSystemEntry[]} */
    const entries = await new Promise((good, bad) => reader.readEntries(good, bad));
    if (!entries.length) return found;
    found.push(...(await Promise.all(entries.map((one) => walk(one, path)))).flat());
  }
}

/**
 * Removes files of file managers, such as .DS_Store, and the name of the folder if all files are in one folder.
 * @param {ChosenFile[]} chosen
 * @returns {{ folder: string, files: ChosenFile[] }} folder: "" unless all files are in one folder
 */
export function tidy(chosen) {
  const kept = chosen.filter(({ path }) => !path.split("/").some(isLeftBehind));
  const tops = new Set(kept.map(({ path }) => (path.includes("/") ? path.split("/")[0] : "")));
  const [top] = tops;
  if (tops.size !== 1 || !top) return { folder: "", files: kept };
  return { folder: top, files: kept.map(({ file, path }) => ({ file, path: path.slice(top.length + 1) })) };
}

/** @param {string} part a part of a path */
function isLeftBehind(part) {
  return part.startsWith(".") || LEFT_BEHIND.includes(part);
}

/**
 * Proposes a name for the model: the name of the folder, or the name of the file without its extension.
 * @param {ChosenFile[]} chosen
 * @returns {string} "" if no part of that name can be used
 */
export function proposedName(chosen) {
  const { folder, files } = tidy(chosen);
  const base = folder || files[0]?.path.replace(/(\.tar\.gz|\.[^.]+)$/i, "") || "";
  return base.replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^[^A-Za-z0-9]+/, "");
}

/**
 * Finds each file of an upload among the files that were chosen again: by the same size, and the same path or end of the path.
 * If the upload has a single file, the chosen file may have any name.
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
 * Gives chosen files the paths of the missing files: by their names, or directly if there is one chosen and one missing file.
 * @param {ChosenFile[]} chosen
 * @param {string[]} missing paths
 * @returns {ChosenFile[]}
 */
export function asMissing(chosen, missing) {
  if (chosen.length === 1 && missing.length === 1) return [{ file: chosen[0].file, path: missing[0] }];
  return chosen.map(({ file, path }) => ({ file, path: missing.find((one) => one.split("/").at(-1) === file.name) ?? path }));
}
