"""TorchServe archives for tests: a zip file with MAR-INF/MANIFEST.json, as torch-model-archiver writes it.

archive(tmp_path / "noop.mar", handler="def handle(data, context): ...")
model(repository, "noop", handler=..., config={"batchSize": 4}, files={"labels.txt": "a b"})
"""

import json
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

# The folder that makes the package `ts` importable, as in the process of a model.
TS_PATH = Path(__file__).resolve().parents[2] / "serving" / "torchserve" / "ts-path"
NOOP = """
def handle(data, context):
    if data is None:
        return None
    return [next(iter(row.values())) for row in data]
"""


def files_of(
    name: str,
    *,
    handler: str = NOOP,
    handler_name: str = "",
    version: str = "1.0",
    config: Mapping[str, Any] | None = None,
    files: Mapping[str, str | bytes] | None = None,
    runtime: str = "python",
    **named: str,
) -> dict[str, bytes]:
    """Return the files of an archive. handler: a source, stored as handler.py. handler_name: the handler in the manifest, if
    that is another.

    config: the model-config.yaml. named: further entries of the manifest's model, such as serializedFile.
    """
    model = {"modelName": name, "handler": handler_name or "handler.py", "modelVersion": version, **named}
    found: dict[str, bytes] = {}
    if handler:
        found["handler.py"] = textwrap.dedent(handler).encode()
    if config is not None:
        found["model-config.yaml"] = yaml.safe_dump(dict(config)).encode()
        model["configFile"] = "model-config.yaml"
    for path, content in (files or {}).items():
        found[path] = content.encode() if isinstance(content, str) else content
    manifest = {"createdOn": "22/11/2026 12:28:24", "runtime": runtime, "model": model, "archiverVersion": "0.12.0"}
    found["MAR-INF/MANIFEST.json"] = json.dumps(manifest, indent=2).encode()
    return found


def archive(path: Path, name: str = "", **contents: Any) -> Path:
    """Write a .mar; see `files_of`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for file, content in files_of(name or path.stem, **contents).items():
            packed.writestr(file, content)
    return path


def model(
    repository: Path, name: str, *, pbtxt: str = 'backend: "torchserve"\n', number: int = 1, **contents: Any
) -> Path:
    """Put an archive into a model repository, with a config.pbtxt unless `pbtxt` is empty. Return the model's folder."""
    archive(repository / name / str(number) / "model.mar", name, **contents)
    if pbtxt:
        (repository / name / "config.pbtxt").write_text(pbtxt)
    return repository / name


FUNCTIONS = """
def pre(data, context):
    return data if data is None else [row.get("body") or row.get("data") for row in data]

def post(data, context):
    return data if data is None else [bytes(row["body"]).decode() + " post" for row in data]
"""


def war(path: Path, name: str, spec: str, *, functions: str = FUNCTIONS) -> Path:
    """Write the archive of a workflow, as torch-workflow-archiver does. spec: its YAML. functions: its Python source."""
    manifest = {"workflow": {"workflowName": name, "specFile": "spec.yaml", "handler": "functions.py"}}
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("WAR-INF/MANIFEST.json", json.dumps(manifest))
        packed.writestr("spec.yaml", spec)
        packed.writestr("functions.py", functions)
    return path
