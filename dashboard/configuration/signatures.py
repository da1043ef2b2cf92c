"""The tensors by which a server checks requests, from a configuration and its model files."""

from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.models import Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature
from repository.config.document import Document
from repository.config.signature import Entry, datatype_name


def served_signature(document: Document, version: Version | None) -> Signature:
    """Return the tensors by which the server checks requests: from the configuration, else from the version's file."""
    declared = declared_signature(document)
    own: Signature = version.signature if version is not None else {}
    return {
        "inputs": declared["inputs"] or own.get("inputs", []),
        "outputs": declared["outputs"] or own.get("outputs", []),
    }


def declared_signature(document: Document) -> Signature:
    """Return the tensors of a configuration in the form of requests; none if the text has mistakes."""
    config = ModelConfig() if document.mistake else document.message
    batch = [-1] if config.max_batch_size > 0 else []
    return {
        "inputs": [_row(entry, batch, optional=entry.optional) for entry in config.input],
        "outputs": [_row(entry, batch) for entry in config.output],
    }


def _row(entry: Entry, batch: list[int], *, optional: bool = False) -> TensorRow:
    row = TensorRow(name=entry.name, datatype=datatype_name(entry.data_type), shape=[*batch, *entry.dims])
    return {**row, "optional": True} if optional else row
