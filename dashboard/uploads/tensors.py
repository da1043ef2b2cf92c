"""The tensors of a version as pages show them: what its file says, and from its configuration what the file leaves open."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models.upload_json import Proposal, TensorRow
from dashboard.models.version import Signature
from repository.config import model_config
from repository.config.signature import Entry, datatype_name
from repository.core.errors import InvalidConfig


def signature_with(proposal: Proposal, text: str) -> Signature:
    """Return the inputs and outputs that an inspection found; a Python model's file names them without type and shape."""
    try:
        config = model_config.parse(text)
    except InvalidConfig:
        config = ModelConfig()
    declared = {entry.name: entry for entries in (config.input, config.output) for entry in entries}
    return {
        "inputs": [_completed(row, declared, config) for row in proposal.get("inputs", [])],
        "outputs": [_completed(row, declared, config) for row in proposal.get("outputs", [])],
    }


def _completed(row: TensorRow, declared: dict[str, Entry], config: ModelConfig) -> TensorRow:
    entry = declared.get(row["name"])
    if row["datatype"] or entry is None:
        return row
    batch = [-1] if config.max_batch_size > 0 else []
    return {"name": row["name"], "datatype": datatype_name(entry.data_type), "shape": [*batch, *entry.dims]}
