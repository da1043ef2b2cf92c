"""One conversion, step by step: the environment, the recipe's program, the answers of the new model, the comparison.

A job does the steps with `run_program` of its own, which confines the programs.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dashboard.conversions.check import VERDICT
from dashboard.conversions.lineage import lineage
from dashboard.conversions.recipes.table import BY_NAME, environment_of, source_of
from dashboard.environments.locks import Lock, read_lock
from dashboard.environments.making import Tell, environment
from dashboard.shared.exceptions import Invalid

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "requirements" / "convert"
REPORT = "report.json"
_MAX_REPORT_BYTES = 4 << 20
_MOST_FACTS, _LONGEST_TEXT = 100, 1000

RunProgram = Callable[[Sequence[str], Mapping[str, str]], tuple[int, str]]
"""Runs a command with these variables; returns its exit status, and the last line of its errors."""


def run_unconfined(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
    """Run a program as this person, with the person's rights."""
    done = subprocess.run(command, env=dict(variables), cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, lines[-1] if lines else ""


class Conversion:
    """A source, a recipe with its options, and the folder for the result. Raises Invalid for options that are wrong."""

    def __init__(self, recipe: str, source: Path, target: Path, options: Mapping[str, Any]) -> None:
        self.recipe = BY_NAME[recipe]
        self.source, self.target = source_of(source.resolve()), target.resolve()
        self.options = self.recipe.checked(options)
        if not self.recipe.recognises(self.source):
            raise Invalid(f"the recipe '{recipe}' takes {self.recipe.takes}, and the source has none")

    @property
    def lock(self) -> Lock:
        """Return the lock of the environment that the recipe's program needs."""
        return read_lock(LOCKS / f"{environment_of(self.recipe, self.source)}.txt")

    def run(self, environments: Path, tell: Tell, run_program: RunProgram = run_unconfined) -> dict[str, Any]:
        """Do all steps. Return the lineage. Raises Invalid with one sentence where a step refuses."""
        with environment(self.lock, environments, lambda percent, step: tell(percent * 0.6, step)) as made:
            tell(60, f"Converting with the recipe '{self.recipe.name}'.")
            report = self.convert(made.python, run_program)
        tell(85, "Comparing the answers of the converted model with its source's.")
        verdict = self.compare(report, run_program)
        if verdict["sentence"]:
            raise Invalid(verdict["sentence"])
        tell(100, "The converted model answers as its source does.")
        return lineage(self.source, self.recipe, self.options, report, verdict)

    def convert(self, python: Path, run_program: RunProgram) -> dict[str, Any]:
        """Run the recipe's program, and return its report. Raises Invalid with the report's sentence and advice."""
        self.target.mkdir(parents=True, exist_ok=True)
        options = self.target / "options.json"
        options.write_text(json.dumps(self.options))
        arguments = self.recipe.arguments(self.source.folder, self.target, options)
        status, last = run_program([str(python), "-W", "ignore", *arguments], variables())
        report = self.report()
        if not report:
            raise Invalid(
                f"the recipe '{self.recipe.name}' ended with status {status} and no report: {last or 'it said nothing'}"
            )
        if report["error"]:
            raise Invalid(_short(f"{report['error']}: {report['advice']}"))
        return report

    def report(self) -> dict[str, Any]:
        """Return the recipe's report; {} if there is none that can be read. Nothing in it is trusted."""
        found = _read(self.target / REPORT)
        shape = {"error": str, "advice": str, "packages": dict, "warnings": list}
        if not all(isinstance(found.get(key), kind) for key, kind in shape.items()):
            return {}
        packages = list(found["packages"].items())[:_MOST_FACTS]
        warnings = [_short(str(one)) for one in found["warnings"][:_MOST_FACTS]]
        return {**found, "packages": {_short(key): _short(str(one)) for key, one in packages}, "warnings": warnings}

    def compare(self, report: dict[str, Any], run_program: RunProgram) -> dict[str, Any]:
        """Ask the converted model in a process of its own, which also compares. Return its verdict as JSON.

        Raises Invalid if the model does not run.
        """
        status, last = run_program(
            [sys.executable, "-m", "dashboard.conversions.answers", str(self.target)], variables()
        )
        verdict = _read(self.target / VERDICT)
        if status or not isinstance(verdict.get("sentence"), str):
            raise Invalid(_short(last) or f"the server's own runtime ended with status {status} at the converted model")
        return verdict


def _read(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file that a program wrote; {} if there is none that can be read."""
    try:
        found = (
            json.loads(path.read_text()) if not path.is_symlink() and path.stat().st_size <= _MAX_REPORT_BYTES else 0
        )
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST_TEXT]


def variables() -> dict[str, str]:
    """Return the variables of a recipe's process: few threads, no bytecode beside the product's modules, no network names."""
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH") if name in os.environ
    }
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": "", "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
