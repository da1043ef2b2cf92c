"""The models of a TorchServe set-up: each version with its archive, settings and workers, and the archives that fail.

read(options) -> SetUp

The registered versions come from a snapshot, or else from `load_models` and `models` of config.properties. All other archives
of the store are listed as not registered. Only manifests are read; no code of an archive runs.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from repository.core.errors import RepositoryError
from repository.core.layout import check_name
from repository.torchserve import model_archive, workflow_models
from repository.torchserve.archive_names import archives_in, default_name, file_name, named
from repository.torchserve.model_archive import Manifest, ModelSettings
from repository.torchserve.options import TorchServeOptions
from repository.torchserve.version_settings import Registering, Settings, read_workers, workers_in_archive
from repository.torchserve.workflow_spec import InvalidWorkflow, Node, WorkflowSpec, check_archive, read_spec, unpack

UNNAMED_VERSION = "1.0"  # the version of an archive whose manifest gives no version


class Failure(NamedTuple):
    """An archive that cannot be used, and the reason."""

    archive: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetUpVersion:
    """One version. registered: whether it serves at the start. workers: their number, or None if no setting gives it."""

    model: str
    version: str
    archive: str  # the name of the archive in the store
    path: Path
    manifest: Manifest
    in_archive: ModelSettings
    settings: Settings
    workers: int | None
    max_workers: int | None
    registered: bool
    workflow: str = ""  # the workflow that this model is a node of


@dataclass(frozen=True, slots=True)
class SetUpModel:
    """A model. versions: in numerical order, 1.9 before 1.10. default: the version for requests that name no version."""

    name: str
    versions: list[SetUpVersion]
    default: SetUpVersion | None  # None if no version is registered


@dataclass(frozen=True, slots=True)
class SetUpWorkflow:
    """A workflow. nodes: the nodes that are archives of the store. The workflow's own archive, `path`, has its functions."""

    spec: WorkflowSpec
    archive: str
    path: Path
    nodes: list[SetUpModel]
    registered: bool


@dataclass(frozen=True, slots=True)
class SetUp:
    """The result of `read`. notes: a sentence for each setting that has no effect."""

    models: list[SetUpModel] = field(default_factory=list)
    workflows: list[SetUpWorkflow] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Wanted(NamedTuple):
    name: str
    url: str
    said: Mapping[str, Any] | None  # all settings of the version, if a snapshot gives them
    registered: bool


def read(
    options: TorchServeOptions, archives: Mapping[str, Path] | None = None, wars: Mapping[str, Path] | None = None
) -> SetUp:
    """Return the models and workflows of a set-up.

    archives: name -> file, in place of the archives in options.model_store. wars: the same for archives of workflows.
    """
    if archives is None:
        assert options.model_store is not None
        archives = {name: options.model_store / name for name in archives_in(options.model_store)}
    found: dict[tuple[str, str], SetUpVersion] = {}
    failures, defaults = [], dict[str, str]()
    for wanted in _list_wanted(options, archives):
        try:
            version = _version(wanted, options, archives)
            if twin := found.get((version.model, version.version)):
                raise RepositoryError(
                    f"version {version.version} of '{version.model}' is in {twin.archive} already; give one of them another "
                    "version (torch-model-archiver --version)"
                )
        except RepositoryError as error:
            failures.append(Failure(file_name(wanted.url) or wanted.url, error.message))
            continue
        found[version.model, version.version] = version
        if version.registered and (_says_default(version, wanted, options) or version.model not in defaults):
            defaults[version.model] = version.version
    models = [_model(name, found, defaults.get(name)) for name in sorted({name for name, _ in found})]
    workflows = list(_workflows(options, archives, wars or {}, failures, {model.name for model in models}))
    return SetUp(models, workflows, failures, _unused(options, found))


def function_node(workflow: SetUpWorkflow, node: Node, path: Path, options: TorchServeOptions) -> SetUpModel:
    """Return the model of a workflow's function. path: the archive that was made from the function."""
    return _node(workflow.spec, node, workflow.archive, path, options, workflow.registered)


def _workflows(
    options: TorchServeOptions,
    archives: Mapping[str, Path],
    wars: Mapping[str, Path],
    failures: list[Failure],
    taken: set[str],
) -> Iterator[SetUpWorkflow]:
    """Yield the workflows that can be served. taken: the names of models; this function adds the names of the workflows."""
    named = {file_name(url): name for name, url in options.snapshot_workflows}
    for archive, path in sorted(wars.items()):
        try:
            spec = _spec(path, named.get(archive, ""))
            if spec.name in taken:
                raise InvalidWorkflow(
                    f"another model or workflow of the store is called '{spec.name}'; give the workflow another name "
                    "(torch-workflow-archiver --workflow-name)"
                )
            registered = not named or archive in named
            nodes = [_archive_node(spec, node, archives, options, registered) for node in spec.nodes if node.url]
        except RepositoryError as error:
            failures.append(Failure(archive, error.message))
            continue
        taken.add(spec.name)
        yield SetUpWorkflow(spec, archive, path, nodes, registered)


def _spec(path: Path, name: str) -> WorkflowSpec:
    check_archive(path)
    with tempfile.TemporaryDirectory() as folder:
        unpack(path, Path(folder) / "war")
        return read_spec(Path(folder) / "war", name)


def _archive_node(
    spec: WorkflowSpec, node: Node, archives: Mapping[str, Path], options: TorchServeOptions, registered: bool
) -> SetUpModel:
    archive = file_name(node.url)
    path = archives.get(archive)
    if path is None:
        raise InvalidWorkflow(
            f"its node '{node.name}' needs {archive or 'an archive'}, which is not there; bring it, too"
        )
    return _node(spec, node, archive, path, options, registered)


def _node(
    spec: WorkflowSpec, node: Node, archive: str, path: Path, options: TorchServeOptions, registered: bool
) -> SetUpModel:
    manifest, in_archive = model_archive.read_description(path)
    asked = workflow_models.registering(spec, node)
    version = manifest.version or UNNAMED_VERSION
    name = check_name(asked.model_name)
    workers = workflow_models.workers_of(node)
    found = SetUpVersion(
        model=name,
        version=version,
        archive=archive,
        path=path,
        manifest=manifest,
        in_archive=in_archive,
        settings=Settings.of(asked, in_archive, manifest, options, name, version),
        workers=workers,
        max_workers=workers,
        registered=registered,
        workflow=spec.name,
    )
    return SetUpModel(name, [found], found if registered else None)


def _list_wanted(options: TorchServeOptions, archives: Mapping[str, Path]) -> Iterator[_Wanted]:
    """Yield the versions that are registered at the start, then the other archives."""
    seen = set()
    for wanted in _registered(options, archives):
        seen.add(file_name(wanted.url))
        yield wanted
    names = {str(said.get("marName")): name for name, said in _settings(options)}
    for name in archives:
        if name not in seen and model_archive.looks_like_one(archives[name]):
            yield _Wanted(names.get(name, ""), name, None, False)


def _registered(options: TorchServeOptions, archives: Mapping[str, Path]) -> Iterator[_Wanted]:
    if options.model_snapshot is not None:
        for name, versions in options.model_snapshot.items():
            for said in versions.values():
                yield _Wanted(
                    name, str(said.get("marName") or ""), said, read_workers(said.get("minWorkers"), 1, 0) > 0
                )
        return
    names = {str(said.get("marName")): name for name, said in _settings(options)}
    if options.load_models == ("all",):
        wanted = [("", name) for name in archives if model_archive.looks_like_one(archives[name])]
    else:
        wanted = [named(text) for text in options.load_models]
    for name, url in wanted:
        if url:
            yield _Wanted(name or names.get(file_name(url), ""), url, None, True)


def _settings(options: TorchServeOptions) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, versions in options.models.items():
        for said in versions.values():
            yield name, said


def _version(wanted: _Wanted, options: TorchServeOptions, archives: Mapping[str, Path]) -> SetUpVersion:
    """Return a version. Raises RepositoryError if its archive is missing or invalid."""
    archive = file_name(wanted.url)
    path = archives.get(archive)
    if path is None:
        raise RepositoryError(
            "it is not in the model store; copy it there" if archive else "no setting names its place"
        )
    manifest, in_archive = model_archive.read_description(path)
    name = check_name(wanted.name or manifest.name or default_name(archive))
    version = manifest.version or UNNAMED_VERSION
    handler = str(wanted.said.get("handler") or "") if wanted.said is not None else ""
    asked = Registering(url=wanted.url, handler=handler)
    settings = Settings.of(asked, in_archive, manifest, options, name, version, wanted.said)
    workers, most = _workers(wanted, in_archive, options, name, version)
    return SetUpVersion(
        model=name,
        version=version,
        archive=archive,
        path=path,
        manifest=manifest,
        in_archive=in_archive,
        settings=settings,
        workers=workers,
        max_workers=most,
        registered=wanted.registered,
    )


def _workers(
    wanted: _Wanted, in_archive: ModelSettings, options: TorchServeOptions, name: str, version: str
) -> tuple[int | None, int | None]:
    """Return the least and the most workers, from the snapshot, or else the archive, or else config.properties."""
    if wanted.said is not None:
        least = read_workers(wanted.said.get("minWorkers"), 1, 0)
        return max(least, 1), max(read_workers(wanted.said.get("maxWorkers"), 1, 0), least, 1)
    if (both := workers_in_archive(in_archive)) is not None:
        return both
    said = options.models.get(name, {}).get(version, {})
    default = options.default_workers_per_model
    least, most = read_workers(said.get("minWorkers"), default), read_workers(said.get("maxWorkers"), default)
    return (least, max(least, most)) if least else (None, most or None)


def _says_default(version: SetUpVersion, wanted: _Wanted, options: TorchServeOptions) -> bool:
    said = wanted.said if wanted.said is not None else options.models.get(version.model, {}).get(version.version, {})
    return said.get("defaultVersion") is True


def _model(name: str, found: Mapping[tuple[str, str], SetUpVersion], default: str | None) -> SetUpModel:
    versions = [one for (model, _), one in found.items() if model == name]
    versions.sort(key=lambda one: _version_key(one.version))
    return SetUpModel(name, versions, found[name, default] if default is not None else None)


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Return a sort key that puts 1.9 before 1.10, and numbers before words."""
    parts = re.findall(r"[0-9]+|[^0-9.]+", version, re.ASCII)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def _unused(options: TorchServeOptions, found: Mapping[tuple[str, str], SetUpVersion]) -> list[str]:
    """Return a sentence for each version that has settings but no archive."""
    if options.model_snapshot is not None:
        return []
    return [
        f"models: the settings of version {version} of '{name}' are passed over: no archive of the store is that version"
        for name, versions in options.models.items()
        for version in versions
        if (name, version) not in found
    ]
