"""The archive of a workflow and its specification: the models and functions that are its nodes, and the edges between them.

A .war is a zip file with WAR-INF/MANIFEST.json, which names the specification in YAML and the Python file with the functions.
Source: docs/workflows.md of TorchServe 0.12, workflow-archiver/README.md, and archives that torch-workflow-archiver 0.2 wrote.
"""

import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import yaml

from repository.core.addresses import leads_into
from repository.core.errors import InvalidArchive, RepositoryError, UnsafeArchive
from repository.core.layout import check_name
from repository.files import archive as zip_archive

MANIFEST = "WAR-INF/MANIFEST.json"
MAX_TEXT_BYTES = 1 << 20
MAX_NODES = 256
MAX_NUMBER = 2**31 - 1
_SETTINGS = ("min-workers", "max-workers", "batch-size", "max-batch-delay", "retry-attempts", "timeout-ms")


class InvalidWorkflow(InvalidArchive):
    """A malformed archive of a workflow, or one whose nodes have no order.

    kind: the Java class of the error, which clients read.
    """

    def __init__(self, message: str, kind: str = "InvalidWorkflowException") -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The settings of all nodes, or of one node."""

    min_workers: int = 1
    max_workers: int = 1
    batch_size: int = 1
    max_batch_delay_ms: int = 50
    retry_attempts: int = 1
    timeout_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class Node:
    """url: the url of a model's archive; "" for a function. sources: the nodes whose answers it gets, in the DAG's order."""

    name: str
    url: str
    settings: NodeSettings
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkflowSpec:
    """nodes: ordered, each node after the nodes that feed it. leaves: the nodes that feed no other node."""

    name: str
    handler: str  # the file with the functions; "" if there is none
    requirements: str
    settings: NodeSettings
    nodes: tuple[Node, ...]
    leaves: tuple[str, ...]
    dag: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def as_json(self) -> dict[str, Any]:
        """Return the mappings of the specification, with every setting. `spec_of` makes an equal workflow from them."""
        models = {node.name: {"url": node.url, **_written(node.settings)} for node in self.nodes if node.url}
        return {"models": {**_written(self.settings), **models}, "dag": self.dag}

    @property
    def dag_text(self) -> str:
        """Return the DAG in the form of TorchServe: {pre=[one, two], one=[agg]}."""
        edges = (f"{name}=[{', '.join(targets)}]" for name, targets in self.dag.items())
        return "{" + ", ".join(edges) + "}"


def unpack(path: Path, folder: Path) -> None:
    """Unpack an archive into a folder that does not exist yet. Raises InvalidWorkflow if the file cannot be unpacked."""
    try:
        zip_archive.extract(path, folder)
    except RepositoryError as error:
        raise InvalidWorkflow(error.message) from None


def check_archive(path: Path) -> None:
    """Raise RepositoryError for a file that is no zip file. Its contents are checked when it is unpacked."""
    if not zipfile.is_zipfile(path):
        raise UnsafeArchive(f"'{path.name}' is no workflow archive: expected a zip file")


def read_spec(folder: Path, name: str = "") -> WorkflowSpec:
    """Read an unpacked archive. name: replaces the name in the manifest. Raises InvalidWorkflow if the archive is invalid."""
    manifest = _manifest(folder)
    name = name or _text(manifest, "workflowName")
    if not name:
        raise InvalidWorkflow("Workflow name is not defined.")
    try:
        check_name(name)
    except RepositoryError as error:
        raise InvalidWorkflow(f"workflow name '{name[:80]}' cannot be used: {error.message}") from None
    try:
        spec = yaml.safe_load(_content(folder, _text(manifest, "specFile"), "specification"))
    except (yaml.YAMLError, ValueError, RecursionError):
        raise InvalidWorkflow("Failed to parse yaml.") from None
    found = spec_of(name, spec, _text(manifest, "handler"), _text(manifest, "requirementsFile"))
    functions = [node.name for node in found.nodes if not node.url]
    if functions:
        _content(folder, found.handler, f"handler, which function '{functions[0]}' should be in")
    return found


def spec_of(name: str, said: object, handler: str = "", requirements: str = "") -> WorkflowSpec:
    """Return a workflow from the mappings `models` and `dag` of its specification. Raises InvalidWorkflow if one is invalid."""
    models = said.get("models") if isinstance(said, dict) else None
    dag = said.get("dag") if isinstance(said, dict) else None
    if not isinstance(dag, dict) or not dag or not isinstance(models, dict | None):
        raise InvalidWorkflow("the specification needs a mapping 'dag', and may have a mapping 'models'")
    common = _settings(models or {}, NodeSettings(), "models")
    edges = _edges(dag)
    nodes = _nodes(edges, models or {}, common)
    fed = {source for node in nodes for source in node.sources}
    leaves = tuple(node.name for node in nodes if node.name not in fed)
    return WorkflowSpec(name, handler, requirements, common, nodes, leaves, edges)


# -- the manifest --------------------------------------------------------------------------------------------------------
def _manifest(folder: Path) -> Mapping[str, Any]:
    try:
        whole = json.loads(_content(folder, MANIFEST, "manifest"))
    except (ValueError, RecursionError):
        raise InvalidWorkflow(f"{MANIFEST} is not JSON") from None
    workflow = whole.get("workflow") if isinstance(whole, dict) else None
    if not isinstance(workflow, dict):
        raise InvalidWorkflow("Missing Workflow entry in manifest file.")
    return workflow


def _content(folder: Path, name: str, what: str) -> bytes:
    """Return the content of a file of the archive. Files outside the archive are refused."""
    path = folder / name
    inside = name and ".." not in Path(name).parts and leads_into(path, folder)
    if not inside or not path.is_file() or path.is_symlink():
        raise InvalidWorkflow(f"the archive has no {what}: expected the file '{name[:80] or MANIFEST}'")
    with path.open("rb") as file:
        content = file.read(MAX_TEXT_BYTES + 1)
    if len(content) > MAX_TEXT_BYTES:
        raise InvalidWorkflow(f"the {what} is larger than {MAX_TEXT_BYTES >> 10} KiB")
    return content


def _text(manifest: Mapping[str, Any], key: str) -> str:
    value = manifest.get(key)
    return value if isinstance(value, str) else ""


# -- the specification -----------------------------------------------------------------------------------------------------
def _settings(said: Mapping[Any, Any], otherwise: NodeSettings, where: str) -> NodeSettings:
    values = {}
    for key in _SETTINGS:
        value = said.get(key, getattr(otherwise, _field(key)))
        least = 0 if key in ("retry-attempts", "max-batch-delay") else 1
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MAX_NUMBER:
            raise InvalidWorkflow(f"{key} of {where} must be a whole number from {least} up, not {str(value)[:40]!r}")
        values[_field(key)] = value
    return NodeSettings(**values)


def _written(settings: NodeSettings) -> dict[str, int]:
    return {key: getattr(settings, _field(key)) for key in _SETTINGS}


def _field(key: str) -> str:
    return {"max-batch-delay": "max_batch_delay_ms"}.get(key, key.replace("-", "_"))


def _edges(dag: Mapping[Any, Any]) -> dict[str, list[str]]:
    """Return node -> the nodes that it feeds, as written, without empty names."""
    edges: dict[str, list[str]] = {}
    for name, targets in dag.items():
        listed = targets if isinstance(targets, list) else [] if targets is None else None
        if not isinstance(name, str) or listed is None or not all(isinstance(one, str | None) for one in listed):
            raise InvalidWorkflow("each entry of 'dag' needs a list of names: '<node>: [<node>, ...]'")
        edges[name] = [one for one in listed if one and one.strip()]
    return edges


def _nodes(edges: Mapping[str, Sequence[str]], models: Mapping[Any, Any], common: NodeSettings) -> tuple[Node, ...]:
    sources: dict[str, list[str]] = {}
    for name, targets in edges.items():
        sources.setdefault(name, [])
        for target in targets:
            found = sources.setdefault(target, [])
            if target == name:
                raise _no_dag("Self loop exception")
            if name not in found:
                found.append(name)
    if len(sources) > MAX_NODES:
        raise InvalidWorkflow(f"a workflow has at most {MAX_NODES} nodes, not {len(sources)}")
    try:
        order = list(TopologicalSorter(sources).static_order())
    except CycleError:
        raise _no_dag("Not a valid DAG") from None
    if sum(not found for found in sources.values()) != 1:
        raise _no_dag("DAG should have only one start node")
    return tuple(_node(name, models.get(name), common, tuple(sources[name])) for name in order)


def _node(name: str, said: object, common: NodeSettings, sources: tuple[str, ...]) -> Node:
    if said is None:
        alone = NodeSettings(max_batch_delay_ms=0, retry_attempts=common.retry_attempts, timeout_ms=common.timeout_ms)
        return Node(name, "", alone, sources)
    url = said.get("url") if isinstance(said, dict) else None
    if not isinstance(said, dict) or not isinstance(url, str):
        raise InvalidWorkflow(f"model '{name[:80]}' of the specification needs a url")
    return Node(name, url, _settings(said, common, f"model '{name[:80]}'"), sources)


def _no_dag(message: str) -> InvalidWorkflow:
    return InvalidWorkflow(message, "InvalidDAGException")
