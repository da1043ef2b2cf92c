"""Models whose files came with a load request: a temporary folder for each, as long as it is loaded from there."""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from repository.errors import RepositoryError
from serving.errors import invalid
from serving.model_identifier import ModelIdentifier
from serving.model_source import write_override


class Overrides:
    def __init__(self) -> None:
        self._folders: dict[ModelIdentifier, Path] = {}

    def write(self, identifier: ModelIdentifier, config: str, files: Mapping[str, bytes]) -> Path:
        """On a worker thread: the folder with the files, in place of an earlier one."""
        if not config:
            raise invalid("files in a load request need the configuration in its 'config' parameter too")
        root = Path(tempfile.mkdtemp(prefix="slipway-override-"))
        try:
            write_override(root, files)
        except RepositoryError as error:
            shutil.rmtree(root)
            raise invalid(str(error)) from error
        self.drop(identifier)
        self._folders[identifier] = root
        return root

    def drop(self, identifier: ModelIdentifier) -> None:
        folder = self._folders.pop(identifier, None)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        for identifier in list(self._folders):
            self.drop(identifier)
