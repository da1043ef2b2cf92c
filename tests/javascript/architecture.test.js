// The rooms of static/js: imports go one way, and nothing writes markup into the page.

import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { dirname, join, normalize } from "node:path";
import test from "node:test";

const ROOT = new URL("../../static/js/", import.meta.url).pathname;
// A room imports from itself and from rooms of a lower step; "" is app.js, which assembles what every page has.
const STEPS = { "": 4, pages: 4, shell: 3, charts: 3, playground: 2, configuration: 2, uploads: 2, live: 2, core: 1 };
const MODULES = readdirSync(ROOT, { recursive: true }).filter((path) => path.endsWith(".js"));

const source = (path) => readFileSync(join(ROOT, path), "utf8");
const room = (path) => (path.includes("/") ? path.split("/")[0] : "");

/** Returns the modules that a module imports, for their types too. */
function imported(path) {
  const names = [...source(path).matchAll(/(?:from |import\()"(\.[^"]+)"/g)].map(([, name]) => name);
  return names.map((name) => normalize(join(dirname(path), name)));
}

test("every import leads to a module", () => {
  for (const path of MODULES) for (const name of imported(path)) assert.ok(MODULES.includes(name), `${path} imports ${name}`);
});

test("rooms import from rooms below them", () => {
  for (const path of MODULES) {
    for (const name of imported(path)) {
      const [here, there] = [room(path), room(name)];
      assert.ok(here === there || STEPS[there] < STEPS[here], `${path} imports ${name}`);
    }
  }
});

test("no module imports itself by way of others", () => {
  const done = new Set();
  const visit = (path, way) => {
    assert.ok(!way.includes(path), [...way, path].join(" -> "));
    if (done.has(path)) return;
    for (const name of imported(path)) visit(name, [...way, path]);
    done.add(path);
  };
  for (const path of MODULES) visit(path, []);
});

test("a page's text is never read as markup or as code", () => {
  for (const path of MODULES) {
    assert.doesNotMatch(source(path), /innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function/, path);
  }
});

test("no type is left open", () => {
  const open = /\{[^}\n]*\bany\b[^}\n]*\}|@ts-(ignore|nocheck|expect-error)/;
  for (const path of MODULES) assert.doesNotMatch(source(path), open, path);
});

test("the files that comments name exist", () => {
  const named = /\b(?:dashboard|serving|repository|examples|tests|static)\/[\w/]+(?:\.\w+)?/g;
  for (const path of MODULES) {
    for (const [name] of source(path).matchAll(named)) {
      assert.ok(existsSync(new URL(`../../${name}`, import.meta.url)), `${path} names ${name}`);
    }
  }
});
