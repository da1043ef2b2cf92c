"""Run the tests that a change affects, in less than two minutes for most changes: `make test-changed`. CI runs all tests.

python -m tools.changed_tests [--base REF] [--list]

A file has changed if it differs from the commit at which the branch left `main`, committed or not. Three kinds of tests run:
tests of the packages of changed files; tests that name a changed file, unless they are long or run whole programs; and tests of
the whole tree.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ("repository", "serving", "dashboard")
WHOLE_TREE = ("tests/test_architecture.py", "tests/test_documentation.py", "tests/test_exceptions.py")
LONG = re.compile(r"\bmark\.(long|soak)\b")
WHOLE_PROGRAMS = ("tests/e2e/", "tests/gpu/")
# Folder of files that are no modules -> the folder of their tests.
BESIDE = {"static/js": "tests/javascript", "templates": "tests/dashboard", "static": "tests/dashboard/web"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="main", help="a branch or commit: what differs from it is changed")
    parser.add_argument("--list", action="store_true", help="name the files of tests, and run nothing")
    arguments = parser.parse_args()
    tests = sorted(touched_by(changed_files(ROOT, arguments.base), ROOT))
    print(*tests, sep="\n", flush=True)
    if not arguments.list:
        sys.exit(_run(tests))


def _run(tests: list[str]) -> int:
    """Run the tests in Python and in JavaScript. Return 0 if all pass, or else the exit status of a failure."""
    in_python = [name for name in tests if name.endswith(".py")]
    in_javascript = [name for name in tests if name.endswith(".js")]
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-q",
        "-n",
        "auto",
        "-m",
        "not soak and not gpu and not conversions and not images",
    ]
    commands = [[*pytest, *in_python]] if in_python else []
    if in_javascript:
        commands.append([str(Path(sys.executable).with_name("node")), "--test", "--test-reporter=dot", *in_javascript])
    return max((subprocess.run(command, cwd=ROOT).returncode for command in commands), default=0)


def changed_files(root: Path, base: str) -> set[str]:
    """Return the paths of files that changed since the checkout left `base`, and of new files that git does not ignore."""
    left = _git(root, "merge-base", "HEAD", base)
    differing = _git(root, "diff", "--name-only", "--no-renames", *left)
    return {*differing, *_git(root, "ls-files", "--others", "--exclude-standard")}


def _git(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip() or 'there is nothing in common'}")
    return done.stdout.splitlines()


def touched_by(changed: set[str], root: Path) -> set[str]:
    """Return the test files to run for the changed files."""
    files = {path.relative_to(root).as_posix(): path for path in root.glob("tests/**/*") if _is_test(path)}
    found = {name for name in (*changed, *WHOLE_TREE) if name in files}
    others = {name: path.read_text() for name, path in files.items() if not name.startswith(WHOLE_PROGRAMS)}
    short = {name: text for name, text in others.items() if not LONG.search(text)}
    for path in changed - files.keys():
        room, word = _room_of(path, root), Path(path).stem
        names = re.compile("|".join(_names(path)))
        found |= {name for name in files if Path(name).parent == room}
        found |= {name for name, text in short.items() if word in text and names.search(text)}
    return found


def _is_test(path: Path) -> bool:
    return (path.name.startswith("test_") and path.suffix == ".py") or path.name.endswith(".test.js")


def _room_of(path: str, root: Path) -> Path | None:
    """Return the folder with the tests of a file's package, or of the nearest package around it that has tests."""
    program = path.partition("/")[0]
    if program == "tests":
        return Path(path).parent
    if program in PROGRAMS:
        room = Path("tests", path).parent
    else:
        beside = next((folder for folder in BESIDE if path.startswith(f"{folder}/")), None)
        if beside is None:
            return None
        room = Path(BESIDE[beside], Path(path).relative_to(beside)).parent
    while not any(_is_test(one) for one in (root / room).glob("*")):
        room = room.parent
    return room


def _names(path: str) -> Iterator[str]:
    """Yield patterns that match a test which names a file: a module by its import, any other file by its path."""
    parts = Path(path).with_suffix("").parts
    if path.endswith(".py") and parts[-1] != "__init__":
        yield rf"\b{re.escape('.'.join(parts))}\b"
        yield rf"\bfrom {re.escape('.'.join(parts[:-1]))} import [^\n]*\b{re.escape(parts[-1])}\b"
    else:
        yield re.escape(path)


if __name__ == "__main__":
    main()
