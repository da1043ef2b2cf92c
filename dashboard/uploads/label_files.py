"""Label files that come with a model file: moves them to the model's folder, and names them in the proposed configuration.

If the configuration already names label files, those are moved. If the configuration was proposed from the model file, a text
with a line for each class of an output is a label file. A Python model itself reads the files in its version, so its files
stay there.
"""

from dataclasses import replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models.upload_json import Finding, Proposal
from dashboard.uploads.arrangement import Arrangement
from repository.config import model_config
from repository.config.document import Document

_MOST_BYTES = 1 << 20


def with_labels(arrangement: Arrangement, proposal: Proposal, folder: Path) -> tuple[Arrangement, Proposal]:
    """Return both arguments, with the label files among the model's files. folder: their new place in the upload's folder."""
    document = Document.read(proposal["config"])
    if document.mistake or proposal["backend"] == "python":
        return arrangement, proposal
    config = ModelConfig()
    config.CopyFrom(document.message)
    loose = [name for name in arrangement.files if "/" not in name]
    if proposal["config_source"] == "file":
        proposal = _naming(config, arrangement.version_dir, loose, proposal)
    named = {output.label_filename for output in config.output} - arrangement.model_files.keys()
    moved = {name: folder / name for name in loose if name in named}
    for name, target in moved.items():
        folder.mkdir(exist_ok=True)
        (arrangement.version_dir / name).replace(target)
    files = [name for name in arrangement.files if name not in moved]
    return replace(arrangement, files=files, model_files={**arrangement.model_files, **moved}), proposal


def _naming(config: ModelConfig, version_dir: Path, names: list[str], proposal: Proposal) -> Proposal:
    """Name the one text that has a line for each class of an output; if there is not exactly one, change nothing."""
    counts = {name: _lines(version_dir / name) for name in names if name.lower().endswith(".txt")}
    found = [(name, output) for output in config.output for name, count in counts.items() if _fits(count, output.dims)]
    if len({name for name, _ in found}) != 1:
        return proposal
    label_file = found[0][0]
    for _, output in found:
        output.label_filename = label_file
    outputs = " and ".join(f"'{output.name}'" for _, output in found)
    said = Finding(
        severity="note", message=f"The file {label_file} names the {counts[label_file]} classes of {outputs}"
    )
    return {**proposal, "config": model_config.format(config), "problems": [*proposal["problems"], said]}


def _fits(count: int, dims: "list[int]") -> bool:
    return count > 1 and len(dims) > 0 and dims[-1] == count


def _lines(path: Path) -> int:
    """Return the number of labels in a file; 0 if the file is not text."""
    if path.stat().st_size > _MOST_BYTES:
        return 0
    try:
        return len(path.read_text(encoding="utf-8").splitlines())
    except UnicodeDecodeError:
        return 0
