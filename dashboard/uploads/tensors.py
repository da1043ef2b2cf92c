"""The tensors of a version for pages: from its file, completed from its configuration."""

from collections.abc import Iterable

from dashboard.configuration.signatures import declared_signature
from dashboard.models.upload_json import Proposal, TensorRow
from dashboard.models.version import Signature
from repository.config.document import Document


def signature_with(proposal: Proposal, document: Document) -> Signature:
    """Return the inspected tensors, completed by the configuration: a Python model's file has names without type and shape."""
    declared = declared_signature(document)
    return {
        "inputs": _completed(proposal.get("inputs", []), declared["inputs"]),
        "outputs": _completed(proposal.get("outputs", []), declared["outputs"]),
    }


def _completed(rows: Iterable[TensorRow], declared: Iterable[TensorRow]) -> list[TensorRow]:
    known = {row["name"]: row for row in declared}
    return [row if row["datatype"] else known.get(row["name"], row) for row in rows]
