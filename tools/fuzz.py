"""Run every test of Hypothesis, round after round with other seeds, and keep the findings.

    python -m tools.fuzz --seconds 3600                      `make fuzz`
    python -m tools.fuzz tests/e2e/fuzzing/test_fuzz_http.py         only these files
    python -m tools.fuzz --again fuzz-findings/<name>.txt    one finding again, with its seed

A failure is kept as a file with the command that repeats it and the whole output. The smallest example that Hypothesis found is
kept in the folder `examples` next to that file, and later runs try it first. The exit status is 1 if there are findings.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MARKERS = "hypothesis and not gpu and not browser and not soak"
# The timeout in seconds for a test: a test that takes longer hangs.
LIMIT_S = 3600


def pytest(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    options = ["-q", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"), f"--rootdir={ROOT}", "-m", MARKERS]
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    environment = {**os.environ, **(environment or {})}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def fuzzed_files(paths: list[str]) -> list[str]:
    """Return the given files, and all files with tests of Hypothesis in the given folders."""
    files = [path for path in paths if Path(path).is_file()]
    folders = [path for path in paths if path not in files]
    if folders or not files:
        listed = pytest("--collect-only", *(folders or ["tests"])).stdout
        files += re.findall(r"^([\w./-]+\.py)::", listed, re.MULTILINE)
        if not files:
            raise SystemExit(f"there is nothing to fuzz here:\n{listed}")
    return list(dict.fromkeys(files))


class Fuzzer:
    """Runs files with seeds, and keeps failures in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self.findings: list[Path] = []

    def run(self, file: str, seed: int) -> None:
        start = time.monotonic()
        environment = {"FUZZ_SEED": str(seed), "FUZZ_FOLDER": str(self._folder)}
        done = pytest("-x", f"--timeout={LIMIT_S}", file, environment=environment)
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        print(f"{time.strftime('%H:%M:%S')} {file}, seed {seed}: {last} ({time.monotonic() - start:.0f} s)", flush=True)
        if done.returncode:
            self._keep(file, seed, done.stdout + done.stderr)

    def _keep(self, file: str, seed: int, output: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{Path(file).stem}-{seed}.txt"
        again = f"python -m tools.fuzz --again {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}"
        path.write_text(f"file: {file}\nseed: {seed}\nagain: {again}\n\n{output}")
        self.findings.append(path)
        print(f"  found something; again by: {again}", flush=True)


def rounds(files: list[str], seconds: float) -> Iterator[str]:
    """Yield the files again and again, in a new order each time, until the time is up; each file at least once."""
    end = time.monotonic() + seconds
    first = True
    while first or time.monotonic() < end:
        for file in random.sample(files, len(files)):
            if first or time.monotonic() < end:
                yield file
        first = False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", help="test files or folders; by default all of them")
    parser.add_argument("--seconds", type=float, default=3600.0, help="how long; the file under way is finished")
    parser.add_argument("--folder", type=Path, default=ROOT / "fuzz-findings", help="where findings are kept")
    parser.add_argument("--again", type=Path, help="a finding's file")
    given = parser.parse_args()
    fuzzer = Fuzzer(given.folder)
    if given.again:
        said = dict(re.findall(r"^(file|seed): (.+)$", given.again.read_text(), re.MULTILINE))
        fuzzer.run(said["file"], int(said["seed"]))
    else:
        for file in rounds(fuzzed_files(given.paths), given.seconds):
            fuzzer.run(file, random.SystemRandom().randrange(1, 2**63))
    print(f"{len(fuzzer.findings)} findings" + "".join(f"\n  {path}" for path in fuzzer.findings))
    return 1 if fuzzer.findings else 0


if __name__ == "__main__":
    sys.exit(main())
