"""`make formats`: makes models with other tools, inspects and serves them, and writes the results to docs/formats.md.

python -m tools.formats           everything; the first run takes some minutes and 4 GB for the tools
python -m tools.formats page      only the page, from the existing models
python -m tools.formats torch     the models of one environment, then the page
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tritonclient.grpc as grpc

from benchmarks.folders import ROOT
from dashboard.environments.locks import read_lock
from dashboard.environments.making import Tell, environment
from tests.support.exported_models import FOLDER, Exported, exported_models
from tests.support.serving_process import ServerProcess
from tools.formats.page import Row, page

MAKERS = {"tabular": "tabular.py", "torch": "torch_exports.py", "keras": "keras_exports.py"}
PAGE = ROOT / "docs" / "formats.md"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.formats", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["all", "page", *MAKERS], default="all")
    wanted = parser.parse_args().what
    for name in MAKERS if wanted == "all" else [wanted] if wanted in MAKERS else []:
        make(name)
    PAGE.write_text(page(rows(exported_models())))
    print(f"wrote {PAGE.relative_to(ROOT)}")


def make(name: str) -> None:
    """Make the models of one environment, and replace the existing ones."""
    lock = read_lock(ROOT / "requirements" / "convert" / f"{name}.txt")
    program = Path(__file__).parent / "makers" / MAKERS[name]
    with environment(lock, ROOT / ".cache" / "environments", show()) as made, tempfile.TemporaryDirectory() as folder:
        subprocess.run([made.python, "-W", "ignore", program, folder], env=made.variables(), cwd=folder, check=True)
        for case in sorted(Path(folder).glob("*/case.json")):
            shutil.rmtree(FOLDER / case.parent.name, ignore_errors=True)
            shutil.copytree(case.parent, FOLDER / case.parent.name)


def show() -> Tell:
    """Return a callback that prints each step once."""
    steps = [""]

    def tell(percent: float, step: str) -> None:
        if step != steps[-1]:
            steps.append(step)
            print(step, flush=True)

    return tell


def rows(models: list[Exported]) -> list[Row]:
    """Inspect every model, and serve each valid model with the configuration that the inspection proposes."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        reports = {model.name: placed(model, repository) for model in models}
        with ServerProcess(repository) as server, grpc.InferenceServerClient(server.grpc) as client:
            return [Row(model, reports[model.name], result(model, reports[model.name], client)) for model in models]


def placed(model: Exported, repository: Path) -> dict[str, Any]:
    """Inspect a model, and put it into the repository if it can be served. Return the report of the inspection."""
    source = model.folder / "files"
    command = [sys.executable, "-m", "serving.inspect", str(source), "--name", model.name]
    report: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    if not any(problem["severity"] == "error" for problem in report["problems"]):
        version = repository / model.name / "1"
        shutil.copytree(source, version)
        ending = Path(report["filename"]).suffix
        [file] = version.glob(f"*{ending}")
        file.rename(version / report["filename"])
        (version.parent / "config.pbtxt").write_text(report["config"])
    return report


def result(model: Exported, report: dict[str, Any], client: grpc.InferenceServerClient) -> str:
    """Return the result for a model, in words. Raise AssertionError if its maker expects another result."""
    errors = [problem for problem in report["problems"] if problem["severity"] == "error"]
    if bool(errors) != bool(model.refused):
        raise AssertionError(f"{model.name}: {errors or 'it was to be refused'}")
    if errors:
        return errors[0]["message"]
    wrong = model.differences(client)
    if wrong:
        raise AssertionError(f"{model.name}: {wrong}")
    return f"equal within {model.tolerance:g}"


if __name__ == "__main__":
    main()
