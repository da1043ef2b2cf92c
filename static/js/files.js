// Files and folders as a person gave them: [{file, path}], folders walked, paths relative to what was dropped.

export function fromInput(input) {
  return [...input.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
}

/** What a drop carries. The entries must be taken at once: the browser empties the list when the event is over. */
export async function fromDrop(dataTransfer) {
  const entries = [...dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  if (!entries.length) return [...dataTransfer.files].map((file) => ({ file, path: file.name }));
  const found = await Promise.all(entries.map((entry) => walk(entry, "")));
  return found.flat();
}

async function walk(entry, under) {
  const path = under ? `${under}/${entry.name}` : entry.name;
  if (entry.isFile) return [{ file: await new Promise((good, bad) => entry.file(good, bad)), path }];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    // One call gives at most a hundred entries.
    const entries = await new Promise((good, bad) => reader.readEntries(good, bad));
    if (!entries.length) return found;
    found.push(...(await Promise.all(entries.map((one) => walk(one, path)))).flat());
  }
}

/** Without what file managers leave behind, and, for one folder, without that folder's own name. */
export function tidy(chosen) {
  const kept = chosen.filter(({ path }) => !path.split("/").some((part) => part.startsWith(".") || part === "__MACOSX" || part === "__pycache__"));
  const tops = new Set(kept.map(({ path }) => (path.includes("/") ? path.split("/")[0] : "")));
  const [top] = tops;
  if (tops.size !== 1 || !top) return { folder: "", files: kept };
  return { folder: top, files: kept.map(({ file, path }) => ({ file, path: path.slice(top.length + 1) })) };
}

/** A model name out of what was chosen: the folder's, or the file's without its ending. */
export function proposedName(chosen) {
  const { folder, files } = tidy(chosen);
  const base = folder || files[0]?.path.replace(/\.[^.]+$/, "") || "";
  return base.replace(/[^A-Za-z0-9._-]+/g, "_").replace(/^[^A-Za-z0-9]+/, "");
}
