"""A workflow as models: a model `<workflow>__<node>` for each node, and an ensemble with the name of the workflow.

The first node gets the parts of the request. Every other node gets the answers of the nodes that feed it. The answer of a
single node is the part `body`. The answers of several nodes are parts with the names of the nodes. The ensemble's parameter
torchserve.workflow contains the specification, so that any server can run the ensemble as a workflow. slipway.step_retries
contains the number of attempts and the timeout of each node.
"""

import json
from pathlib import Path
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import TYPE_STRING, ModelConfig

from repository.config import model_config, step_retries
from repository.core import layout
from repository.files import storage
from repository.torchserve.model_archive import FOLDER, MANIFEST
from repository.torchserve.parameters import WORKFLOW
from repository.torchserve.version_settings import DEFAULT_TIMEOUT_S, MAX_WORKERS, Registering
from repository.torchserve.workflow_spec import InvalidWorkflow, Node, WorkflowSpec, spec_of

INPUT = "data"


class Described(NamedTuple):
    """A workflow that an ensemble describes. url: the url of its archive. digest: the SHA-256 of the archive; "" if unknown."""

    spec: WorkflowSpec
    url: str
    digest: str


def model_name(workflow: str, node: str) -> str:
    return f"{workflow}__{node}"


def input_of(spec: WorkflowSpec) -> str:
    """Return the name of the ensemble's input, a name that no node has."""
    name = INPUT
    while any(node.name == name for node in spec.nodes):
        name += "_"
    return name


def ensemble(spec: WorkflowSpec, url: str = "", digest: str = "") -> ModelConfig:
    """Return the configuration of the ensemble. Each node's answer is a tensor with its name; the leaves give the outputs."""
    config = ModelConfig(platform="ensemble", max_batch_size=1)
    start = input_of(spec)
    retries: dict[str, dict[str, int]] = {}
    config.input.add(name=start, data_type=TYPE_STRING, dims=[-1])
    for leaf in spec.leaves:
        config.output.add(name=leaf, data_type=TYPE_STRING, dims=[1])
    for node in spec.nodes:
        step = config.ensemble_scheduling.step.add(model_name=model_name(spec.name, node.name), model_version=-1)
        if not node.sources:
            step.input_map[INPUT] = start
        elif len(node.sources) == 1:
            step.input_map["body"] = node.sources[0]
        else:
            step.input_map.update({source: source for source in node.sources})
        step.output_map[INPUT] = node.name
        retries[step.model_name] = {"retries": node.settings.retry_attempts, "timeout_ms": node.settings.timeout_ms}
    config.parameters[model_config.SLIPWAY_PREFIX + step_retries.PARAMETER].string_value = json.dumps(retries)
    said = {"url": url, "sha256": digest, **spec.as_json}
    config.parameters[WORKFLOW].string_value = json.dumps({key: value for key, value in said.items() if value})
    return config


def described(name: str, config: ModelConfig) -> Described | None:
    """Return the workflow that an ensemble's configuration describes, or None for any other model."""
    if WORKFLOW not in config.parameters or not model_config.is_ensemble(config):
        return None
    try:
        said = json.loads(config.parameters[WORKFLOW].string_value)
        return Described(spec_of(name, said), str(said.get("url", "")), str(said.get("sha256", "")))
    except (InvalidWorkflow, ValueError, RecursionError):
        return None


def registering(
    spec: WorkflowSpec,
    node: Node,
    response_timeout_s: int = DEFAULT_TIMEOUT_S,
    startup_timeout_s: int = DEFAULT_TIMEOUT_S,
) -> Registering:
    """Return the settings to register the model of a node with."""
    settings = node.settings
    return Registering(
        url=node.url,
        model_name=model_name(spec.name, node.name),
        batch_size=settings.batch_size,
        max_batch_delay_ms=settings.max_batch_delay_ms,
        response_timeout_s=response_timeout_s,
        startup_timeout_s=startup_timeout_s,
        parts=() if not node.sources else ("body",) if len(node.sources) == 1 else node.sources,
    )


def workers_of(node: Node) -> int:
    return min(node.settings.max_workers, MAX_WORKERS)


def write_function(spec: WorkflowSpec, node: Node, unpacked: Path, parent: Path) -> Path:
    """Make an unpacked archive whose handler is one function of the workflow. Return the folder of the archive, below `parent`.

    unpacked: the folder of the unpacked archive of the workflow.
    """
    folder = parent / layout.check_name(node.name)
    parent.mkdir(exist_ok=True)
    storage.link_tree(unpacked, folder)
    (folder / FOLDER).mkdir(exist_ok=True)
    said = {"modelName": node.name, "modelVersion": "1.0", "handler": f"{Path(spec.handler).name}:{node.name}"}
    if spec.requirements:
        said["requirementsFile"] = spec.requirements
    (folder / MANIFEST).write_text(json.dumps({"runtime": "python", "model": said}))
    return folder
