"""Reads a TorchServe archive for the report: its manifest, its settings, and problems that prevent its handler from running.

No code of the archive runs. Only the syntax trees of its sources are read.
"""

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from repository.core.errors import RepositoryError
from repository.core.json_types import Json
from repository.core.python_source import syntax_tree
from repository.files.foreign_formats import POINTER_BYTES, stand_in
from repository.torchserve import model_archive
from repository.torchserve.model_archive import Manifest, ModelSettings
from serving.backends.base.backend import Review
from serving.torchserve.backend.settings import as_serving_error

# TorchServe's own handlers, and the modules that they need in addition to torch.
BUILT_IN = {
    "image_classifier": ("torchvision", "PIL"),
    "image_segmenter": ("torchvision", "PIL"),
    "object_detector": ("torchvision", "PIL"),
    "text_classifier": (),
    "base_handler": (),
}
_MAX_IMPORTS = 200


class ArchiveReport:
    """The review of an archive. Errors prevent serving. Warnings and notes are for the archive's reviewer."""

    def __init__(self, path: Path) -> None:
        """Read the archive. Raises ServingError for a malformed archive."""
        try:
            self.manifest, self.settings, self.files, self.streams = model_archive.read_archive(path)
        except RepositoryError as error:
            raise as_serving_error(error) from None
        self._path = path
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.handler_file = model_archive.handler_file(self.manifest, self.files)
        self._look_at_weights()
        self._look_at_handler()
        self._look_at_settings()

    def review(self) -> Review:
        return Review(self._as_object(), self.errors, self.warnings, self.notes)

    def _as_object(self) -> dict[str, Json]:
        """Return the archive's description for printing. `handler_file` is "" if the handler is one of TorchServe's own."""
        manifest: Manifest = self.manifest
        return {
            "name": manifest.name,
            "version": manifest.version,
            "handler": manifest.handler,
            "handler_file": self.handler_file,
            "serialized_file": manifest.serialized_file,
            "model_file": manifest.model_file,
            "requirements_file": manifest.requirements_file,
            "envelope": manifest.envelope,
            "runtime": manifest.runtime,
            "archiver_version": manifest.archiver_version,
            "created_on": manifest.created_on,
            "streams": self.streams,
            "settings": dict(self.settings.whole),
            "files": dict(self.files),
        }

    def _look_at_weights(self) -> None:
        name = self.manifest.serialized_file
        if not 0 < self.files.get(name, 0) <= POINTER_BYTES:
            return
        try:
            downloaded = stand_in(model_archive.read_file(self._path, name))
        except RepositoryError as error:
            raise as_serving_error(error) from None
        if downloaded is not None:
            self.errors.append(f"'{name}': {downloaded.sentence}")

    def _look_at_handler(self) -> None:
        name = self.manifest.handler.partition(":")[0].removesuffix(".py")
        if not self.handler_file:
            if name in BUILT_IN:
                self._missing(BUILT_IN[name], f"the handler '{name}'")
            else:
                known = ", ".join(BUILT_IN)
                self.errors.append(
                    f"the archive has no handler '{self.manifest.handler}', and it is not one of {known}"
                )
            return
        wanted: set[str] = set()
        for file in [one for one in self.files if one.endswith(".py")]:
            tree = self._parse(file)
            if tree is not None:
                wanted |= set(_imported(tree))
        own = {Path(file).parts[0].removesuffix(".py") for file in self.files}
        self._missing(sorted(wanted - own - {"ts"})[:_MAX_IMPORTS], "the archive's code")

    def _parse(self, file: str) -> ast.Module | None:
        """Return the syntax tree of a source. If it has a syntax error, add an error for the handler, or else a warning."""
        try:
            return syntax_tree(model_archive.read_file(self._path, file))
        except SyntaxError as error:
            sentence = f"'{file}', line {error.lineno}: {error.msg}" if error.lineno else f"'{file}' is no Python text"
        except (ValueError, RecursionError, MemoryError, RepositoryError):
            sentence = f"'{file}' is no Python text"
        (self.errors if file == self.handler_file else self.warnings).append(sentence)
        return None

    def _missing(self, modules: "tuple[str, ...] | list[str]", who: str) -> None:
        """Warn of modules that this server's Python lacks. Missing modules are no error, because the model may have its own
        environment."""
        missing = [one for one in modules if one not in sys.stdlib_module_names and not _is_installed(one)]
        if missing:
            self.warnings.append(
                f"{who} imports {', '.join(missing)}, which this server's Python does not have: install it there, or name an "
                "environment of the model's own by EXECUTION_ENV_PATH"
            )

    def _look_at_settings(self) -> None:
        settings: ModelSettings = self.settings
        if settings.unserved:
            self.warnings.append(
                f"the archive's model-config.yaml sets keys without an effect here: {', '.join(settings.unserved)}"
            )
        if settings.unusable:
            self.warnings.append(
                f"the archive's model-config.yaml has values that count as absent, here as in TorchServe: "
                f"{'; '.join(settings.unusable.values())}"
            )
        if self.manifest.requirements_file:
            self.notes.append(
                f"'{self.manifest.requirements_file}' is installed only where the parameter "
                "torchserve.install_py_dep_per_model is true"
            )
        if self.streams:
            self.notes.append("the handler answers in several parts, so that the model is decoupled")


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level modules that a source imports while it is itself imported."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False
