"""Checks whether a configuration fits a model file. A server refuses some contradictions; others make requests fail.

Before the check, the fields that the configuration leaves out are completed from the file, as the server does.
"""

import re
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config.backends import BACKEND_OF_FILENAME
from repository.config.model_config import backend_of, is_ensemble
from repository.config.signature import Signature, complete

_PART = re.compile(r"(?P<side>input|output)\[(?P<index>\d+)\]\.(?P<part>data_type|dims)")


class ModelFile(NamedTuple):
    """The known facts about a version's model file.

    backend, filename: "" if unknown. files: the names of all files of the version; empty if unknown. signature: the
    declared inputs and outputs, or None if the file declares none.
    """

    backend: str = ""
    filename: str = ""
    files: frozenset[str] = frozenset()
    signature: Signature | None = None


class Misfit(NamedTuple):
    """A contradiction between a configuration and a file. certain: true if a server refuses it; else only requests may fail."""

    field: str
    message: str
    certain: bool = True


def misfits(config: ModelConfig, file: ModelFile) -> list[Misfit]:
    """Return the contradictions between a configuration and a model file; [] for an ensemble, or a file never inspected."""
    named = backend_of(config)
    if is_ensemble(config) or _runs_another(config, file, named):
        return []
    return _backend(config, file, named) or _filename(config, file) or _tensors(config, file)


def _runs_another(config: ModelConfig, file: ModelFile, named: str) -> bool:
    """Return whether the configuration names another file of the version than the inspected one."""
    if config.cc_model_filenames:
        return True
    wanted = {config.default_model_filename} - {""} or {name for name, of in BACKEND_OF_FILENAME.items() if of == named}
    return file.filename not in wanted and any(_has(file, name) for name in wanted)


def _has(file: ModelFile, name: str) -> bool:
    return any(one == name or one.startswith(f"{name}/") for one in file.files)


def _backend(config: ModelConfig, file: ModelFile, named: str) -> list[Misfit]:
    if not named or not file.backend or named == file.backend:
        return []
    field = "backend" if config.backend else "platform"
    return [Misfit(field, f"the configuration's backend is '{named}', but the file is for '{file.backend}'")]


def _filename(config: ModelConfig, file: ModelFile) -> list[Misfit]:
    wanted = config.default_model_filename
    if not wanted or not file.files or _has(file, wanted):
        return []
    return [Misfit("default_model_filename", f"there is no file '{wanted}'")]


def _tensors(config: ModelConfig, file: ModelFile) -> list[Misfit]:
    if file.signature is None:
        return []
    completed = ModelConfig()
    completed.CopyFrom(config)
    problems = complete(completed, file.signature)
    return [
        Misfit(field, message, certain=not file.signature.example and not _left_out(config, field))
        for field, message in problems
    ]


def _left_out(config: ModelConfig, field: str) -> bool:
    """Return whether `field` is absent in the configuration and the file, which is no contradiction: a server may find it."""
    if field in ("input", "output"):
        return not getattr(config, field)
    place = _PART.fullmatch(field)
    if place is None:
        return False
    entry = getattr(config, place["side"])[int(place["index"])]
    return not getattr(entry, place["part"])
