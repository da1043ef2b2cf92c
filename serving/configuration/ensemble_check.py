"""Checks, when an ensemble loads, that it fits the models of its steps, as Triton does.

repository.config.validation finds earlier the mistakes that the configuration alone shows: cycles, tensors that no step writes.
The rules are those of ValidateEnsembleConfig in Triton's documentation of ensembles. Every required input must be mapped.
Datatypes and dims must be equal along each edge. No step may have a smaller maximum batch, unless it does not batch at all.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling, ModelInput, ModelOutput

from serving.core.datatypes import BY_CONFIG
from serving.core.errors import invalid

# Returns the configuration of a model, by name and version.
StepConfig = Callable[[str, int], ModelConfig]
_NO_STREAM = -1


class _Edge(NamedTuple):
    datatype: int
    dims: tuple[int, ...]
    batched: bool
    owner: str

    @property
    def shape(self) -> tuple[int, ...]:
        return (-1, *self.dims) if self.batched else self.dims


def step_models(config: ModelConfig) -> list[str]:
    """Return the names of the models that an ensemble's steps call, each once."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def check_ensemble(config: ModelConfig, step_config: StepConfig) -> None:
    """Raise INVALID_ARG for the first mistake. Set in the configuration whether the ensemble is decoupled."""
    produced = {tensor.name: _edge(tensor, config, "the ensemble's input") for tensor in config.input}
    steps = [(step, step_config(step.model_name, step.model_version)) for step in config.ensemble_scheduling.step]
    for step, model in steps:
        _check_maps(config, step, model)
        outputs = {tensor.name: tensor for tensor in model.output}
        for key, value in step.output_map.items():
            produced[value] = _edge(outputs[key], model, f"step '{step.model_name}'")
    for step, model in steps:
        inputs = {tensor.name: tensor for tensor in model.input}
        for key, value in step.input_map.items():
            _check_edge(config, value, produced, _edge(inputs[key], model, f"step '{step.model_name}'"))
    for tensor in config.output:
        _check_edge(config, tensor.name, produced, _edge(tensor, config, "the ensemble's output"))
    decoupled = config.model_transaction_policy.decoupled = _check_streams(config, steps)
    if decoupled and config.response_cache.enable:
        raise _wrong(config, "a step of it is decoupled, and responses of decoupled models cannot be cached")


def _check_streams(config: ModelConfig, steps: list[tuple[ModelEnsembling.Step, ModelConfig]]) -> bool:
    """Return whether a step is decoupled. Raise if a step or the answer needs tensors from different response streams."""
    # Tensor -> the decoupled step that produces it; two steps with the same model are two streams.
    streams = {tensor.name: _NO_STREAM for tensor in config.input}
    missing = [set(step.input_map.values()) - streams.keys() for step, _ in steps]
    readers: defaultdict[str, list[int]] = defaultdict(list)
    for index, names in enumerate(missing):
        for name in names:
            readers[name].append(index)
    ready = [index for index, names in enumerate(missing) if not names]
    while ready:
        index = ready.pop()
        step, model = steps[index]
        sources = {streams[name] for name in step.input_map.values()}
        if len(sources) > 1:
            raise _wrong(config, f"step '{step.model_name}' receives inputs originated from different decoupled models")
        decoupled = model.model_transaction_policy.decoupled
        source = index if decoupled else next(iter(sources), _NO_STREAM)
        for name in step.output_map.values():
            streams[name] = source
            for reader in readers.pop(name, ()):
                missing[reader].discard(name)
                if not missing[reader]:
                    ready.append(reader)
    answers = {streams.get(tensor.name, _NO_STREAM) for tensor in config.output}
    if len(answers) > 1:
        raise _wrong(config, "its outputs originate from different decoupled models")
    return any(model.model_transaction_policy.decoupled for _, model in steps)


def _check_maps(config: ModelConfig, step: ModelEnsembling.Step, model: ModelConfig) -> None:
    inputs = {tensor.name: tensor for tensor in model.input}
    outputs = {tensor.name for tensor in model.output}
    for key in step.input_map:
        if key not in inputs:
            raise _wrong(config, f"step '{step.model_name}' maps '{key}', which is not an input of that model")
    for key in step.output_map:
        if key not in outputs:
            raise _wrong(config, f"step '{step.model_name}' maps '{key}', which is not an output of that model")
    for name, tensor in inputs.items():
        if not tensor.optional and name not in step.input_map:
            raise _wrong(config, f"step '{step.model_name}' does not map input '{name}' of its model")
    if 0 < model.max_batch_size < config.max_batch_size:
        raise _wrong(
            config,
            f"its maximum batch size is {config.max_batch_size}, but step '{step.model_name}' allows {model.max_batch_size}",
        )


def _check_edge(config: ModelConfig, name: str, produced: dict[str, _Edge], reader: _Edge) -> None:
    source = produced.get(name)
    if source is None:
        raise _wrong(config, f"{reader.owner} reads tensor '{name}', which nothing produces")
    if source.datatype != reader.datatype:
        raise _wrong(
            config,
            f"tensor '{name}' is {_name(source)} from {source.owner}, but {reader.owner} expects {_name(reader)}",
        )
    # A batch dimension of 1 may be added or dropped between a batching and a non-batching model.
    if not _compatible(source.dims, reader.dims) and not _compatible(source.shape, reader.shape):
        raise _wrong(
            config,
            f"tensor '{name}' has shape {list(source.shape)} from {source.owner}, "
            f"but {reader.owner} expects {list(reader.shape)}",
        )


def _edge(tensor: "ModelInput | ModelOutput", config: ModelConfig, owner: str) -> _Edge:
    batched = config.max_batch_size > 0 and not tensor.is_shape_tensor
    own = config.platform == "ensemble" and tensor.HasField("reshape")  # steps use that shape
    return _Edge(tensor.data_type, tuple(tensor.reshape.shape if own else tensor.dims), batched, owner)


def _compatible(left: tuple[int, ...], right: tuple[int, ...]) -> bool:
    return len(left) == len(right) and all(a == b or -1 in (a, b) for a, b in zip(left, right, strict=True))


def _name(edge: _Edge) -> str:
    return BY_CONFIG[edge.datatype].name if edge.datatype in BY_CONFIG else "of no type"


def _wrong(config: ModelConfig, reason: str) -> Exception:
    return invalid(f"ensemble '{config.name}': {reason}")
