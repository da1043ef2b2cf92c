"""The known facts of versions' model files, and the contradictions between them and a configuration."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from dashboard.models import Model, Upload, Version
from dashboard.models.upload_json import TensorRow
from dashboard.releases.storage import managed_repository
from dashboard.shared.client_gone import go_on
from repository.config import version_settings
from repository.config.document import Document
from repository.config.file_check import Misfit, ModelFile, misfits
from repository.config.signature import Signature, TensorSignature
from repository.core.errors import RepositoryError
from repository.core.layout import OVERLAY_FILE

# Formats whose files declare their signature. For an old version without a stored signature, its recorded tensors are used.
_SELF_DESCRIBING = ("onnx", "torch_export")


class Arriving(NamedTuple):
    """A version that is about to be published."""

    number: int
    file: ModelFile


def file_of_version(version: Version) -> ModelFile:
    details = version.details
    stored = details.get("signature")
    if stored is not None:
        signature = Signature.from_json(stored)
    elif "signature" in details or version.format not in _SELF_DESCRIBING:
        signature = None
    else:
        signature = _recorded(version)
    return ModelFile(details.get("backend", ""), version.filename, frozenset(details.get("files", ())), signature)


def file_of_upload(upload: Upload) -> ModelFile:
    """Return the inspected file of an upload; empty fields before the inspection has ended."""
    proposal = upload.proposal
    stored = proposal.get("signature")
    return ModelFile(
        proposal.get("backend", ""),
        proposal.get("filename") or "",
        frozenset(upload.contents.get("files", [])),
        Signature.from_json(stored) if stored else None,
    )


def served_misfits(
    model: Model | None, document: Document, published: Iterable[int], arriving: Arriving | None = None
) -> list[Misfit]:
    """Return the contradictions between a configuration and the files of the versions that it would serve.

    published: the numbers of the model's versions.
    """
    files = {} if arriving is None else {arriving.number: arriving.file}
    chosen = document.versions({*published, *files})
    if model is not None:
        files |= {one.number: file_of_version(one) for one in model.versions.filter(number__in=chosen)}
    folder = managed_repository().model_dir(model.name) if model else None
    return _merged({number: _of_one(folder, number, document, files[number]) for number in chosen})


def _of_one(folder: Path | None, number: int, document: Document, file: ModelFile) -> list[Misfit]:
    go_on()
    config = document.message
    try:
        if folder is not None:
            own = version_settings.as_served(config, number, folder / str(number))
        else:
            own = version_settings.for_version(config, number)
    except RepositoryError as error:
        return [Misfit("", f"{OVERLAY_FILE}: {error.message}")]
    return document.misfits(file) if own is config else misfits(own, file)


def _merged(found: Mapping[int, Iterable[Misfit]]) -> list[Misfit]:
    """Return the misfits of several versions; equal misfits become one, which names all their versions."""
    numbers: dict[Misfit, list[int]] = {}
    for number, problems in found.items():
        for problem in problems:
            numbers.setdefault(problem, []).append(number)
    return [
        problem._replace(message=f"version{'s' if len(of) > 1 else ''} {', '.join(map(str, of))}: {problem.message}")
        for problem, of in numbers.items()
    ]


def _recorded(version: Version) -> Signature | None:
    """Return the signature of an old version from its recorded tensors, which a configuration may have completed."""

    def tensors(rows: Iterable[TensorRow]) -> tuple[TensorSignature, ...]:
        return tuple(TensorSignature(row["name"], row["datatype"], tuple(row["shape"])) for row in rows)

    inputs, outputs = tensors(version.signature.get("inputs", [])), tensors(version.signature.get("outputs", []))
    ordered = version.format == "torch_export"
    return Signature(inputs, outputs, ordered=ordered, example=True) if inputs and outputs else None
