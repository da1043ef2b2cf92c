"""The model repositories of one server: folders of this machine, and copies of what lies in the cloud.

A name is served from the one repository that has it. Methods that read files or speak to the network say so.
"""

import fcntl
import logging
import os
import shutil
import tempfile
from pathlib import Path

from repository.errors import NotFound, RepositoryError, Unreachable
from repository.layout import ModelRepository
from repository.remote import RemoteRepository
from serving.errors import ServingError, invalid, not_found, unavailable
from serving.model_source import fingerprint
from serving.options import Options

log = logging.getLogger(__name__)

_PREFIX = "slipway-models-"
_LOCK = "in-use"


class Repositories:
    """All that --model-repository names, in its order."""

    def __init__(self, options: Options) -> None:
        self._cache: CacheFolder | None = None
        self._all: list[ModelRepository | RemoteRepository] = []
        for place in options.model_repository:
            if isinstance(place, Path):
                self._all.append(ModelRepository(place))
                continue
            self._cache = self._cache or CacheFolder(options.repository_cache_folder)
            self._all.append(RemoteRepository(place, self._cache.path / str(len(self._all))))
        self.remote = [one for one in self._all if isinstance(one, RemoteRepository)]
        self._troubles: dict[str, str] = {}  # address -> why the last look failed

    # -- what is known ---------------------------------------------------------------------------------------------
    def names(self) -> list[str]:
        """Every model, sorted. Of the cloud: as last listed."""
        return sorted({name for repository in self._all for name in repository.models()})

    def why_not(self, name: str) -> str:
        """Why a model that is there cannot be loaded, whatever is in its folder; "" where it can."""
        try:
            self._owner(name)
        except ServingError as error:
            return error.message
        return ""

    def folder(self, name: str) -> Path | None:
        """The model's folder, or the copy of it that there is; None without one. INVALID_ARG for a name in two places."""
        owner = self._owner(name)
        return owner.model_dir(name) if owner is not None else None

    def _owner(self, name: str) -> ModelRepository | RemoteRepository | None:
        try:
            owners = [repository for repository in self._all if repository.has_model(name)]
        except RepositoryError as error:
            raise invalid(str(error)) from error
        if len(owners) > 1:
            raise invalid(
                f"model '{name}' is in {len(owners)} model repositories, but its name must be in only one of them"
            )
        return owners[0] if owners else None

    # -- files and network -----------------------------------------------------------------------------------------
    def look(self, *, settling: bool) -> list[tuple[str, ServingError]]:
        """List what is in the cloud; the addresses that did not answer keep what was known of them. See RemoteRepository."""
        failures = []
        for repository in self.remote:
            shown = repository.address.shown
            trouble = ""
            try:
                repository.look(settling=settling)
            except RepositoryError as error:
                trouble = error.message
                failures.append((shown, unavailable(trouble)))
            if trouble and trouble != self._troubles.get(shown):
                log.warning("%s: %s", shown, trouble)
            elif not trouble and self._troubles.get(shown):
                log.info("%s: answers again", shown)
            self._troubles[shown] = trouble
        return failures

    def fetch(self, name: str, *, refresh: bool) -> Path | None:
        """The folder with the model's files, copied first where they lie in the cloud; None where there is no such model.

        `refresh` lists the model anew. UNAVAILABLE where the cloud does not answer.
        """
        trouble = self._refresh(name) if refresh else {}
        owner = self._owner(name)
        if owner is None and trouble:
            raise next(iter(trouble.values()))
        if not isinstance(owner, RemoteRepository):
            return owner.model_dir(name) if owner is not None else None
        if owner in trouble:
            raise trouble[owner]
        try:
            return owner.fetch(name)
        except RepositoryError as error:
            raise _told(name, error) from error

    def _refresh(self, name: str) -> dict[RemoteRepository, ServingError]:
        trouble = {}
        for repository in self.remote:
            try:
                repository.look_at(name)
            except RepositoryError as error:
                trouble[repository] = _told(name, error)
        return trouble

    def fingerprints(self) -> dict[str, object]:
        """What each model looks like, to be compared with an earlier look; of a model that cannot be loaded, why."""
        found: dict[str, object] = {}
        for name in self.names():
            try:
                owner = self._owner(name)
                if isinstance(owner, RemoteRepository):
                    found[name] = owner.listing(name)
                elif owner is not None:
                    found[name] = fingerprint(owner.model_dir(name))
            except FileNotFoundError:  # deleted since it was listed
                continue
            except ServingError as error:
                found[name] = error.message
        return found

    def is_current(self, name: str) -> bool:
        """False where a copy of the model has still to be made."""
        return all(not repository.has_model(name) or repository.is_copied(name) for repository in self.remote)

    def forget(self, name: str) -> None:
        """Delete the copies of a model that is gone."""
        for repository in self.remote:
            repository.forget(name)

    def close(self) -> None:
        if self._cache is not None:
            self._cache.close()


class CacheFolder:
    """A folder for copies that lives as long as the server; what a killed server left is removed by the next one."""

    def __init__(self, parent: Path | None) -> None:
        base = parent or Path(tempfile.gettempdir())
        base.mkdir(parents=True, exist_ok=True)
        for leftover in base.glob(f"{_PREFIX}*/{_LOCK}"):
            _remove_unless_used(leftover)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
        beginning = self.path / "beginning"
        self._lock = os.open(beginning, os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        beginning.rename(self.path / _LOCK)  # locked from the moment it can be seen

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_unless_used(lock: Path) -> None:
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except OSError:  # another user's
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(lock.parent, ignore_errors=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)


def _told(name: str, error: RepositoryError) -> ServingError:
    message = f"failed to load '{name}': {error.message}"
    if isinstance(error, Unreachable):
        return unavailable(message)
    return not_found(message) if isinstance(error, NotFound) else invalid(message)
