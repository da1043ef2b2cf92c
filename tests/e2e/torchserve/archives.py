"""The corpus: model archives of every kind, and a workflow, made by the real torch-model-archiver and its sister."""

import json
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from onnx import helper

from benchmarks.servers.environments import made, variables_of
from tests.e2e.torchserve.handlers.linear import Linear
from tests.support.model_factory import onnx_bytes

HANDLERS = Path(__file__).with_name("handlers")
# The archiver's own program, for many archives: each start of its command imports for seconds.
ARCHIVER = """\
import json, sys
from model_archiver.arg_parser import ArgParser
from model_archiver.model_archiver import generate_model_archive
from workflow_archiver.workflow_packaging import generate_workflow_archive
work = json.load(sys.stdin)
for line in work["models"]:
    sys.argv = ["torch-model-archiver", *line]
    generate_model_archive()
sys.argv = ["torch-workflow-archiver", *work["workflow"]]
generate_workflow_archive()
"""
WORKFLOW = """\
models:
  min-workers: 1
  max-workers: 1
  batch-size: 2
  max-batch-delay: 10
  first: {url: acts.mar}
  second: {url: acts.mar}
dag:
  pre: [first, second]
  first: [join]
  second: [join]
"""
CONFIG = """\
minWorkers: 1
maxWorkers: 3
batchSize: 4
maxBatchDelay: 20
responseTimeout: 100
deviceType: "cpu"
jobQueueSize: 50
handler:
  greeting: "good morning"
  sizes: [1, 2]
"""


@dataclass(frozen=True)
class Archive:
    """What torch-model-archiver is told; names of files are those of `write_parts` or of the folder `handlers`."""

    model: str
    handler: str
    version: str = "1.0"
    options: Mapping[str, str] = field(default_factory=dict)
    file: str = ""  # its name in the store, where that is not the model's


# TorchServe passes over each of these, and has its own defaults instead.
UNUSABLE = """\
minWorkers: two
batchSize: "3"
maxBatchDelay: -5
responseTimeout: 1.5
jobQueueSize: 0
deviceType: tpu
parallelLevel: 4
deviceIds: [0, 99]
"""
SCRIPTED = {"serialized-file": "scripted.pt", "config-file": "model-config.yaml", "extra-files": "labels.txt"}
BATCHED = """\
batchSize: 4
maxBatchDelay: 10000
jobQueueSize: 4
"""
CORPUS = [
    Archive("acts", "acts.py"),
    Archive("rows", "rows.py", options=SCRIPTED),
    Archive("eager", "rows.py", options={"serialized-file": "state.pth", "model-file": "linear.py"}),
    Archive("onnx", "onnx_rows.py", options={"serialized-file": "linear.onnx"}),
    Archive("batched", "acts.py", options={"config-file": "batched.yaml"}),
    Archive("service", "service:serve"),
    Archive("service", "service:serve", version="2.0", file="service_2.mar"),
    Archive("stream", "stream.py"),
    Archive("unpacked", "acts.py", options={"archive-format": "no-archive"}),
    Archive("unusable", "acts.py", options={"config-file": "unusable.yaml"}),
    Archive("hasty", "acts.py", options={"config-file": "hasty.yaml"}),
    Archive("tarred", "acts.py", options={"archive-format": "tgz"}),
    Archive("fails_to_import", "fails_to_import.py"),
    Archive("fails_to_initialize", "fails_to_initialize.py"),
]


def make_archives(store: Path, parts: Path, archives: Sequence[Archive] = CORPUS) -> Path:
    """Write the archives into a model store."""
    write_parts(parts)
    store.mkdir(parents=True, exist_ok=True)
    made_in = [parts / f"made{index}" for index in range(len(archives))]
    lines = [_line(*pair, parts) for pair in zip(archives, made_in, strict=True)]
    workflow = [
        "--workflow-name",
        "flow",
        "--spec-file",
        str(parts / "flow.yaml"),
        "--handler",
        str(HANDLERS / "flow.py"),
    ]
    workflow += ["--export-path", str(store)]
    environment = made("torchserve")
    subprocess.run(
        [str(environment / "bin" / "python"), "-c", ARCHIVER],
        input=json.dumps({"models": lines, "workflow": workflow}),
        env=variables_of(environment) | {"TMPDIR": str(parts)},  # it gathers the files there, under the model's name
        check=True,
        capture_output=True,
        text=True,
    )
    for archive, folder in zip(archives, made_in, strict=True):
        (only,) = folder.iterdir()
        only.rename(store / (archive.file or only.name))
    return store


def write_parts(folder: Path) -> None:
    """Write the files that archives are made of: one linear layer in each form, with the same weights."""
    folder.mkdir(parents=True, exist_ok=True)
    model = Linear()
    with torch.no_grad():
        model.layer.weight.copy_(torch.tensor([[1.0, 2.0, 3.0], [0.5, -0.5, 0.25]]))
        model.layer.bias.copy_(torch.tensor([0.125, -1.0]))
    torch.save(model.state_dict(), folder / "state.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is what TorchServe's users have
        torch.jit.script(model).save(folder / "scripted.pt")
    node = helper.make_node("Gemm", ["rows", "weight", "bias"], ["sums"], transB=1)
    weights = {name: getattr(model.layer, name).detach().numpy() for name in ("weight", "bias")}
    content = onnx_bytes([node], [("rows", "FP32", ["n", 3])], [("sums", "FP32", ["n", 2])], weights)
    (folder / "linear.onnx").write_bytes(content)
    (folder / "labels.txt").write_text("first\nsecond\n")
    (folder / "model-config.yaml").write_text(CONFIG)
    (folder / "batched.yaml").write_text(BATCHED)
    (folder / "unusable.yaml").write_text(UNUSABLE)
    (folder / "hasty.yaml").write_text("batchSize: 3\nmaxBatchDelay: 0\n")
    (folder / "flow.yaml").write_text(WORKFLOW)


def _line(archive: Archive, export_path: Path, parts: Path) -> list[str]:
    export_path.mkdir()
    line = ["--model-name", archive.model, "--version", archive.version, "--export-path", str(export_path)]
    line += ["--handler", str(HANDLERS / archive.handler)]
    for option, value in archive.options.items():
        path = next((folder / value for folder in (parts, HANDLERS) if (folder / value).exists()), value)
        line += [f"--{option}", str(path)]
    return line
