"""Configurations and files from load requests, which replace the ones in the repository.

As in Triton, a later load without a configuration keeps the last configuration as long as the model's files have not changed.
The files of a load request are dropped by the next load without files. Unloading drops both.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from repository.core.errors import RepositoryError
from serving.core.errors import invalid
from serving.core.model_identifier import ModelIdentifier
from serving.repositories.model_source import Files, write_override


class Overrides:
    """Used on the event loop's thread, except `write`."""

    def __init__(self) -> None:
        self._folders: dict[ModelIdentifier, Path] = {}
        self._configs: dict[ModelIdentifier, tuple[str, Files]] = {}  # with the fingerprint of the model's folder

    def write(self, identifier: ModelIdentifier, config: str, files: Mapping[str, bytes]) -> Path:
        """Write files to a new temporary folder, delete the earlier one, and return the new one. Call it on a worker thread."""
        if not config:
            raise invalid("files in a load request need the configuration in its 'config' parameter too")
        root = Path(tempfile.mkdtemp(prefix="slipway-override-"))
        try:
            write_override(root, files)
        except RepositoryError as error:
            shutil.rmtree(root)
            raise invalid(str(error)) from error
        self._drop_files(identifier)
        self._folders[identifier] = root
        return root

    def last_config(self, identifier: ModelIdentifier, files: Files) -> str:
        """Return the configuration of an earlier load request, or "" if the folder has changed since then."""
        config, before = self._configs.get(identifier, ("", ()))
        return config if files == before else ""

    def loaded(self, identifier: ModelIdentifier, config: str, files: Files, *, has_files: bool) -> None:
        """Record that the model serves with this configuration ("" for its own). has_files: whether the load brought files."""
        self._configs.pop(identifier, None)
        if not has_files:
            self._drop_files(identifier)
            if config:
                self._configs[identifier] = config, files

    def drop(self, identifier: ModelIdentifier) -> None:
        """Drop the configuration and the files of load requests for a model."""
        self._configs.pop(identifier, None)
        self._drop_files(identifier)

    def close(self) -> None:
        for identifier in list(self._folders):
            self.drop(identifier)

    def _drop_files(self, identifier: ModelIdentifier) -> None:
        folder = self._folders.pop(identifier, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
