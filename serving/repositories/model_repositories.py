"""The model repositories of one server: folders of this machine, and copies of repositories in the cloud.

A model is served from the only repository in its namespace that has it. With --model-namespacing each repository is a
namespace; without it all repositories form the namespace "". Methods below "files and network" read files or use the network.
"""

import logging
import os
from collections import defaultdict
from pathlib import Path

from repository.core.errors import NoSpace, NotFound, RepositoryError, Unreachable
from repository.core.layout import ModelRepository
from repository.remote.address import RemoteAddress
from repository.remote.content_cache import ContentCache
from repository.remote.repository import RemoteRepository
from serving.cli.options import Options
from serving.core.errors import ServingError, invalid, not_found, unavailable
from serving.core.model_identifier import ModelIdentifier
from serving.repositories.model_source import fingerprint
from serving.repositories.single_model import looks_like_one_model, open_folder
from serving.resources.private_folder import PrivateFolder

log = logging.getLogger(__name__)

# Triton's environment variables for the folder of the copies, by protocol.
_MOUNT_DIRECTORIES = {
    "s3": "TRITON_AWS_MOUNT_DIRECTORY",
    "gs": "TRITON_GCS_MOUNT_DIRECTORY",
    "abfs": "TRITON_AZURE_MOUNT_DIRECTORY",
}

Repository = ModelRepository | RemoteRepository


class ModelRepositories:
    """The repositories that --model-repository names, in its order."""

    def __init__(self, options: Options) -> None:
        # The private folder and the content below each parent folder; None: the temporary folder, whose content is not kept.
        self._caches: dict[Path | None, tuple[PrivateFolder, ContentCache]] = {}
        self._views: list[PrivateFolder] = []
        self._namespaces: defaultdict[str, list[Repository]] = defaultdict(list)
        self.remote: list[RemoteRepository] = []
        for place in options.model_repository:
            namespace = place.without_secrets if isinstance(place, RemoteAddress) else str(place)
            self._namespaces[namespace if options.model_namespacing else ""].append(self._open(place, options))
        # Whether models that the cache lacks keep the server from being ready while the store does not answer.
        self._needs_all = options.model_control_mode != "explicit" or "*" in options.load_model
        self._errors: dict[str, str] = {}  # folder or address -> why its last listing failed, or ""
        # The folders and addresses that have never been listed.
        self._unlisted = {_shown(one) for repositories in self._namespaces.values() for one in repositories}
        self._missing = [place for place in options.model_repository if isinstance(place, Path) and not place.is_dir()]

    def _open(self, place: Path | RemoteAddress, options: Options) -> Repository:
        if isinstance(place, Path):
            return self._open_folder(place, options)
        folder = options.repository_cache_folder or _mount_directory(place)
        if folder not in self._caches:
            private = PrivateFolder(folder, "slipway-models-")
            content = (
                ContentCache(private.path) if folder is None else ContentCache(folder, options.repository_cache_bytes)
            )
            self._caches[folder] = private, content
        private, content = self._caches[folder]
        # A server that is told by others what to load may begin with an empty bucket.
        asked = options.model_control_mode == "explicit" and not options.load_model
        self.remote.append(RemoteRepository(place, private.path / str(len(self.remote)), content, may_be_empty=asked))
        return self.remote[-1]

    def _open_folder(self, folder: Path, options: Options) -> ModelRepository:
        if options.model_name:
            asked = options.model_control_mode == "explicit"
            return open_folder(folder, options.model_name, self._new_view, may_be_empty=asked)
        if looks_like_one_model(folder):
            log.warning("'%s' looks like one model, not a repository of models: --model-name=NAME serves it", folder)
        return ModelRepository(folder)

    def _new_view(self) -> Path:
        self._views.append(PrivateFolder(None, "slipway-model-"))
        return self._views[-1].path

    @property
    def missing(self) -> list[Path]:
        """Return the folders that were missing when the server started and still are."""
        self._missing = [place for place in self._missing if not place.is_dir()]
        return self._missing

    @property
    def all_listed(self) -> bool:
        """Return whether each repository has been readable at least once, so that all models to serve are known."""
        return not self._unlisted and not self.missing

    @property
    def problems(self) -> dict[str, str]:
        """Return a dict of each repository, as a folder or an address, -> why its last listing failed, or ""."""
        return dict(self._errors)

    @property
    def failing_namespaces(self) -> set[str]:
        """Return the namespaces of repositories whose last listing failed: nobody knows which models these have."""
        return {
            namespace
            for namespace, repositories in self._namespaces.items()
            if any(self._errors.get(_shown(repository)) for repository in repositories)
        }

    @property
    def from_cache(self) -> dict[str, bool]:
        """Return a dict of each address -> whether its models are those of the cache, because the store does not answer."""
        return {_shown(repository): repository.from_cache for repository in self.remote}

    def accept_empty(self) -> set[str]:
        """Take the empty listings of repositories in the cloud for true from now on. Return the namespaces of these."""
        emptied = set()
        for namespace, repositories in self._namespaces.items():
            for one in repositories:
                if isinstance(one, RemoteRepository) and one.empty:
                    one.may_be_empty = True
                    emptied.add(namespace)
        return emptied

    @property
    def _local(self) -> list[ModelRepository]:
        everything = [one for repositories in self._namespaces.values() for one in repositories]
        return [one for one in everything if isinstance(one, ModelRepository)]

    def invalid_folders(self) -> list[str]:
        """Return a sentence for each folder that cannot be a model, in the repositories on this machine."""
        readable = [repository for repository in self._local if not _folder_problem(repository.root)]
        return [sentence for repository in readable for sentence in repository.invalid_folders()]

    # -- models ----------------------------------------------------------------------------------------------------
    def models(self) -> list[ModelIdentifier]:
        """Return every model, sorted. Models in the cloud are taken from the last listing."""
        found = {
            ModelIdentifier(name, namespace)
            for namespace, repositories in self._namespaces.items()
            for repository in repositories
            if isinstance(repository, RemoteRepository) or not _folder_problem(repository.root)
            for name in repository.models()
        }
        return sorted(found)

    def identifiers(self, name: str) -> list[ModelIdentifier]:
        """Return the models of that name, at most one in each namespace. Raises INVALID_ARG if a namespace has several."""
        models = [ModelIdentifier(name, namespace) for namespace in self._namespaces]
        return [model for model in models if self._owner(model) is not None]

    def conflict(self, model: ModelIdentifier) -> str:
        """Return why a model cannot be loaded whatever its folder contains, such as a second repository that has it, or ""."""
        try:
            self._owner(model)
        except ServingError as error:
            return error.message
        return ""

    def _owner(self, model: ModelIdentifier) -> Repository | None:
        try:
            owners = [repository for repository in self._repositories_of(model) if repository.has_model(model.name)]
        except RepositoryError as error:
            raise invalid(str(error)) from error
        if len(owners) > 1:
            raise invalid("model appears in two or more repositories")
        return owners[0] if owners else None

    def _repositories_of(self, model: ModelIdentifier) -> list[Repository]:
        """Return the repositories of the model's namespace."""
        return self._namespaces.get(model.namespace, [])

    def _remote_of(self, model: ModelIdentifier) -> list[RemoteRepository]:
        return [repository for repository in self._repositories_of(model) if isinstance(repository, RemoteRepository)]

    # -- files and network -----------------------------------------------------------------------------------------
    def check_local(self) -> list[tuple[str, ServingError]]:
        """Note which folders of this machine can be listed. Return those that cannot, without those missing from the start."""
        for repository in self._local:
            problem = _folder_problem(repository.root)
            self._note_listing(str(repository.root), problem)
            if not problem:
                self._unlisted.discard(str(repository.root))
        return [
            (str(one.root), unavailable(f"{one.root}: {problem}"))
            for one in self._local
            if (problem := self._errors[str(one.root)]) and one.root not in self._missing
        ]

    def list_remote(self, *, until_stable: bool) -> list[tuple[str, ServingError]]:
        """List the models in the cloud. Return the addresses that did not answer, whose last list stays in use.

        A store that has not answered since the start is no failure if the cache has all that is needed.
        """
        failures = []
        for repository in self.remote:
            shown, unreachable = _shown(repository), ""
            try:
                repository.list_models(until_stable=until_stable)
            except RepositoryError as error:
                unreachable = error.message
                if shown in self._unlisted and self._use_kept(repository):
                    self._unlisted.discard(shown)
                else:
                    failures.append((shown, unavailable(unreachable)))
                if repository.from_cache:
                    unreachable += f"; {len(repository.models())} models are those of the cache"
            else:
                self._unlisted.discard(shown)
            self._note_listing(shown, unreachable)
        return failures

    def _use_kept(self, repository: RemoteRepository) -> bool:
        """Take the models of the cache. Return whether they are all that the server needs in order to be ready."""
        return repository.use_kept() or (repository.from_cache and not self._needs_all)

    def _note_listing(self, shown: str, problem: str) -> None:
        """Keep how the last listing of a repository ended, and log a change. problem: why it failed, or ""."""
        if problem and problem != self._errors.get(shown):
            log.warning("%s: %s", shown, problem)
        elif not problem and self._errors.get(shown):
            log.info("%s: answers again", shown)
        self._errors[shown] = problem

    def list_remote_model(self, name: str) -> None:
        """List one model in the cloud, which may have just been published. Raises UNAVAILABLE if the cloud does not answer."""
        unreachable = _refresh(name, self.remote)
        if unreachable and not self.identifiers(name):
            raise _as_serving_error(next(iter(unreachable.values())))

    def fetch(self, model: ModelIdentifier, *, refresh: bool) -> Path | None:
        """Return the folder with the model's files, or None if there is no model. Files in the cloud are copied first.

        refresh: whether to list the model again first. Raises UNAVAILABLE if the cloud does not answer.
        """
        unreachable = _refresh(model.name, self._remote_of(model)) if refresh else {}
        owner = self._owner(model)
        if owner is None and unreachable:
            raise _as_serving_error(next(iter(unreachable.values())))
        if not isinstance(owner, RemoteRepository):
            return owner.model_dir(model.name) if owner is not None else None
        if owner in unreachable and not owner.from_cache:
            raise _as_serving_error(unreachable[owner])
        try:
            return owner.fetch(model.name)
        except RepositoryError as error:
            raise _as_serving_error(error) from error

    def fingerprints(self) -> dict[ModelIdentifier, object]:
        """Return a fingerprint of each model, which changes with its files, or the reason why the model cannot be loaded."""
        found: dict[ModelIdentifier, object] = {}
        for model in self.models():
            try:
                owner = self._owner(model)
                if isinstance(owner, RemoteRepository):
                    found[model] = owner.listing(model.name)
                elif owner is not None:
                    found[model] = fingerprint(owner.model_dir(model.name))
            except FileNotFoundError:  # the model was deleted since it was listed
                continue
            except ServingError as error:
                found[model] = error.message
        return found

    def is_current(self, model: ModelIdentifier) -> bool:
        """Return whether the copy of the model, if there must be one, is from the last listing."""
        copies = self._remote_of(model)
        return all(not repository.has_model(model.name) or repository.is_copied(model.name) for repository in copies)

    def forget(self, model: ModelIdentifier) -> None:
        """Delete the copies of a deleted model."""
        for repository in self._remote_of(model):
            repository.forget(model.name)

    def close(self) -> None:
        for private in (*(private for private, _ in self._caches.values()), *self._views):
            private.close()


def _shown(repository: Repository) -> str:
    return str(repository.root) if isinstance(repository, ModelRepository) else repository.address.without_secrets


def _folder_problem(folder: Path) -> str:
    """Return why a folder cannot be listed, or ""."""
    try:
        os.scandir(folder).close()
    except OSError as error:
        return f"the model repository cannot be listed: {error.strerror or type(error).__name__}"
    return ""


def _mount_directory(place: RemoteAddress) -> Path | None:
    folder = os.environ.get(_MOUNT_DIRECTORIES.get(place.protocol, ""), "")
    return Path(folder) if folder else None


def _refresh(name: str, repositories: list[RemoteRepository]) -> dict[RemoteRepository, RepositoryError]:
    unreachable = {}
    for repository in repositories:
        try:
            repository.list_model(name)
        except RepositoryError as error:
            unreachable[repository] = error
    return unreachable


def _as_serving_error(error: RepositoryError) -> ServingError:
    if isinstance(error, Unreachable | NoSpace):
        return unavailable(error.message)
    return not_found(error.message) if isinstance(error, NotFound) else invalid(error.message)
