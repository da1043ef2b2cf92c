"""The tensors by which a server checks requests, of a configuration and of the files that it serves."""

from dashboard.configuration.fields import Fields, TensorFields
from dashboard.models import Version
from dashboard.models.upload_json import TensorRow
from dashboard.models.version import Signature


def served_signature(fields: Fields, version: Version | None) -> Signature:
    """Return the tensors of the configuration, by which the server checks requests; where it names none, the version's own."""
    batch = [-1] if fields.get("max_batch_size") else []
    own: Signature = version.signature if version is not None else {}
    return {
        "inputs": _tensors(fields.get("inputs", []), batch) or own.get("inputs", []),
        "outputs": _tensors(fields.get("outputs", []), batch) or own.get("outputs", []),
    }


def _tensors(rows: list[TensorFields], batch: list[int]) -> list[TensorRow]:
    return [_tensor(row, batch) for row in rows]


def _tensor(row: TensorFields, batch: list[int]) -> TensorRow:
    tensor = TensorRow(name=row["name"], datatype=_wire_type(row["data_type"]), shape=[*batch, *row["dims"]])
    return {**tensor, "optional": True} if row.get("optional") else tensor


def _wire_type(name: str) -> str:
    """Return V2's name of a configuration's data type: they differ for TYPE_STRING, which is BYTES."""
    return "BYTES" if name == "STRING" else name
