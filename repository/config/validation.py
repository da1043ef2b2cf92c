"""The rules of a model configuration. Each broken rule is reported with its field and one sentence.

Source of the rules: model_config_utils.cc of Triton's core, and Triton's docs/user_guide/model_configuration.md. The rules
about file names, sizes and backend parameters are Slipway's own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.agents import table as agents
from repository.config import validation_batching, validation_ensemble, validation_parameters, version_settings
from repository.config.backends import PLATFORMS
from repository.config.model_config import backend_of, is_ensemble
from repository.core.errors import InvalidConfig, InvalidName, Problem, UnsafePath
from repository.core.layout import check_name, relative_path

MAX_INSTANCES = 1024
MAX_ELEMENTS = 1 << 40  # the most elements of one tensor of one request: more than the memory of any machine

_Declared: TypeAlias = mc.ModelInput | mc.ModelSequenceBatching.State  # declares the datatype of a warm-up input


def validate(config: ModelConfig, *, name: str = "", complete: bool = True) -> list[Problem]:
    """Return all problems of a configuration; an empty list means that it is valid.

    `name` is the name of the model's folder. With complete=False, fields that the server completes from the model file may be
    missing: backend, inputs, outputs, datatypes, dims.
    """
    problems = _problems(config, name, complete)
    known = set(problems)
    for number, effective in version_settings.of_versions(config).items():
        own = _problems(effective, name, complete)
        problems.extend(version_settings.at_version(number, found) for found in own if found not in known)
    return problems


def _problems(config: ModelConfig, name: str, complete: bool) -> list[Problem]:
    problems = [*_identity(config, name, complete)]
    for check in _CHECKS:
        problems.extend(check(config))
    if complete:
        problems.extend(_completeness(config))
    return problems


def check(config: ModelConfig, *, name: str = "", complete: bool = True) -> None:
    """Raise InvalidConfig, carrying every problem, unless the configuration is valid."""
    problems = tuple(validate(config, name=name, complete=complete))
    if problems:
        raise InvalidConfig("; ".join(map(str, problems)), field=problems[0].field, problems=problems)


def _identity(config: ModelConfig, name: str, complete: bool) -> Iterator[Problem]:
    if name and config.name and config.name != name:
        yield Problem("name", f"expected '{name}' as the model's folder is named, not '{config.name}'")
    elif config.name:
        try:
            check_name(config.name)
        except InvalidName as error:
            yield Problem("name", error.message)
    elif complete:
        yield Problem("name", "the model has no name")
    yield from _backend(config, complete)


def _backend(config: ModelConfig, complete: bool) -> Iterator[Problem]:
    platform, backend = config.platform, config.backend
    if platform == "ensemble" or (not platform and is_ensemble(config)):
        if backend:
            yield Problem("backend", f"an ensemble has no backend, but '{backend}' is given")
        return
    if platform and platform not in PLATFORMS and not backend:
        yield Problem("platform", f"expected one of {', '.join(PLATFORMS)}, or a backend, not '{platform}'")
    elif platform and backend and backend in PLATFORMS.values() and PLATFORMS.get(platform, backend) != backend:
        yield Problem("platform", f"platform '{platform}' does not belong to backend '{backend}'")
    elif not platform and not backend and complete:
        yield Problem("backend", "neither a backend nor a platform is given")


def _completeness(config: ModelConfig) -> Iterator[Problem]:
    if config.platform != "ensemble" and is_ensemble(config):
        yield Problem("platform", 'an ensemble needs platform: "ensemble"')
    if not config.input and not config.output and backend_of(config) != "python":
        yield Problem("output", "neither inputs nor outputs are given")
    for kind, tensors in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(tensors):
            if tensor.data_type == mc.TYPE_INVALID:
                yield Problem(f"{kind}[{index}].data_type", f"{kind} '{tensor.name}' has no data_type")
            if not tensor.dims:
                yield Problem(f"{kind}[{index}].dims", f"{kind} '{tensor.name}' has no dims")


def _tensors(config: ModelConfig) -> Iterator[Problem]:
    for kind, tensors in (("input", config.input), ("output", config.output)):
        seen: set[str] = set()
        for index, tensor in enumerate(tensors):
            field = f"{kind}[{index}]"
            if not tensor.name:
                yield Problem(f"{field}.name", f"{kind} {index} has no name")
            elif tensor.name in seen:
                yield Problem(f"{field}.name", f"{kind} '{tensor.name}' is given twice")
            seen.add(tensor.name)
            yield from _shape(field, kind, tensor, config)


def _shape(field: str, kind: str, tensor: mc.ModelInput | mc.ModelOutput, config: ModelConfig) -> Iterator[Problem]:
    bad = [*_dims(f"{field}.dims", tensor.dims, f"{kind} '{tensor.name}'")]
    yield from bad
    if tensor.HasField("reshape"):
        shape = tensor.reshape.shape
        bad_shape = [*_dims(f"{field}.reshape.shape", shape, f"the reshape of {kind} '{tensor.name}'")]
        yield from bad_shape
        if not bad and not bad_shape:
            yield from _reshape(field, kind, tensor, config.max_batch_size)
    if kind == "input" and tensor.format != mc.ModelInput.FORMAT_NONE and tensor.dims and len(tensor.dims) != 3:
        yield Problem(f"{field}.format", f"an image has 3 dims, but input '{tensor.name}' has {len(tensor.dims)}")
    if PLATFORMS.get(config.platform, config.backend) != "tensorrt":
        for flag in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(tensor, flag) and backend_of(config):
                yield Problem(f"{field}.{flag}", f"only TensorRT knows {flag}")
    if kind == "output" and tensor.label_filename:
        yield from _file(f"{field}.label_filename", tensor.label_filename)


def _dims(field: str, dims: Iterable[int], what: str) -> Iterator[Problem]:
    count = 1
    for index, dim in enumerate(dims):
        if dim < 1 and dim != -1:
            yield Problem(f"{field}[{index}]", f"expected a positive dim, or -1 for any size, not {dim} in {what}")
        count *= max(dim, 1)
    if count > MAX_ELEMENTS:
        yield Problem(field, f"{what} would have {count} elements; expected at most {MAX_ELEMENTS}")


def _reshape(field: str, kind: str, tensor: mc.ModelInput | mc.ModelOutput, max_batch_size: int) -> Iterator[Problem]:
    """Require that dims and reshape have the same number of elements between every two dims of variable size."""
    dims, shape = list(tensor.dims), list(tensor.reshape.shape)
    if not shape and max_batch_size == 0:
        yield Problem(f"{field}.reshape", f"{kind} '{tensor.name}' needs a batch dimension to be reshaped to nothing")
    elif _runs(dims) != _runs(shape) and dims:
        yield Problem(f"{field}.reshape", f"{kind} '{tensor.name}' cannot be reshaped from {dims} to {shape}")


def _runs(dims: list[int]) -> list[int]:
    """Return the element counts of the stretches between variable-size dims: [2, 4, -1, 6] -> [8, 6]."""
    runs = [1]
    for dim in dims:
        if dim == -1:
            runs.append(1)
        else:
            runs[-1] *= dim
    return runs


def _file(field: str, name: str) -> Iterator[Problem]:
    try:
        relative_path(name)
    except UnsafePath:
        yield Problem(field, f"'{name}' does not name a file inside the model's folder")


def _files(config: ModelConfig) -> Iterator[Problem]:
    if config.default_model_filename:
        yield from _file("default_model_filename", config.default_model_filename)
    for key, name in config.cc_model_filenames.items():
        yield from _file(f'cc_model_filenames["{key}"]', name)
    for index, name in enumerate(config.model_operations.op_library_filename):
        yield from _file(f"model_operations.op_library_filename[{index}]", name)


def _version_policy(config: ModelConfig) -> Iterator[Problem]:
    policy = config.version_policy
    if policy.WhichOneof("policy_choice") == "specific":
        if not policy.specific.versions:
            yield Problem("version_policy.specific.versions", "a specific version policy names no version")
        for index, version in enumerate(policy.specific.versions):
            if version < 1:
                yield Problem(f"version_policy.specific.versions[{index}]", f"versions count from 1, not {version}")


def _instance_groups(config: ModelConfig) -> Iterator[Problem]:
    if is_ensemble(config):
        return
    for index, group in enumerate(config.instance_group):
        field = f"instance_group[{index}]"
        if not 0 <= group.count <= MAX_INSTANCES:
            yield Problem(f"{field}.count", f"expected 1 to {MAX_INSTANCES} instances, not {group.count}")
        if group.gpus and group.kind in (mc.ModelInstanceGroup.KIND_CPU, mc.ModelInstanceGroup.KIND_MODEL):
            kind = mc.ModelInstanceGroup.Kind.Name(group.kind)
            yield Problem(f"{field}.gpus", f"GPUs are given, but the kind is {kind}")
        for position, gpu in enumerate(group.gpus):
            if gpu < 0:
                yield Problem(f"{field}.gpus[{position}]", f"GPUs count from 0, not {gpu}")
        if len(set(group.gpus)) != len(group.gpus):
            yield Problem(f"{field}.gpus", "a GPU is given twice; raise the count to have more instances on it")
        if group.profile and backend_of(config) not in ("tensorrt", ""):
            yield Problem(f"{field}.profile", "only TensorRT knows optimisation profiles")
        for position, profile in enumerate(group.profile):
            if not profile.isdecimal():
                yield Problem(f"{field}.profile[{position}]", f"'{profile}' is not the number of a profile")


def _warmup(config: ModelConfig) -> Iterator[Problem]:
    known: dict[str, _Declared | None] = {tensor.name: tensor for tensor in config.input}
    if (
        known
    ):  # a sample may contain inputs that the sequence batcher adds; control inputs declare their datatypes elsewhere
        known |= dict.fromkeys(tensor.name for tensor in config.sequence_batching.control_input)
        known |= {state.input_name: state for state in config.sequence_batching.state}
    for index, sample in enumerate(config.model_warmup):
        field = f"model_warmup[{index}]"
        limit = max(config.max_batch_size, 1)
        if sample.batch_size > limit:
            yield Problem(f"{field}.batch_size", f"expected at most {limit}, not {sample.batch_size}")
        for name, tensor in sample.inputs.items():
            yield from _warmup_input(f'{field}.inputs["{name}"]', name, tensor, known)


def _warmup_input(
    field: str, name: str, tensor: mc.ModelWarmup.Input, known: Mapping[str, _Declared | None]
) -> Iterator[Problem]:
    if known and name not in known:
        yield Problem(field, f"the model has no input '{name}'")
    elif (declared := known.get(name)) is not None and declared.data_type not in (mc.TYPE_INVALID, tensor.data_type):
        expected = mc.DataType.Name(declared.data_type)
        yield Problem(
            f"{field}.data_type", f"expected {expected} as in the input, not {mc.DataType.Name(tensor.data_type)}"
        )
    for position, dim in enumerate(tensor.dims):
        if dim < 1:
            yield Problem(f"{field}.dims[{position}]", f"expected a positive dim, not {dim}")
    source = tensor.WhichOneof("input_data_type")
    if source is None:
        yield Problem(field, "none of zero_data, random_data and input_data_file is given")
    elif source == "input_data_file":
        yield from _file(f"{field}.input_data_file", tensor.input_data_file)


def _response_cache(config: ModelConfig) -> Iterator[Problem]:
    if not config.response_cache.enable:
        return
    if config.WhichOneof("scheduling_choice") == "sequence_batching":
        yield Problem("response_cache", "responses of a model with sequence batching cannot be cached")
    if config.model_transaction_policy.decoupled:
        yield Problem("response_cache", "responses of a decoupled model cannot be cached")


def _metrics(config: ModelConfig) -> Iterator[Problem]:
    for index, control in enumerate(config.model_metrics.metric_control):
        field = f"model_metrics.metric_control[{index}]"
        if not control.metric_identifier.family:
            yield Problem(f"{field}.metric_identifier.family", "no metric family is named")
        buckets = list(control.histogram_options.buckets)
        if not buckets or buckets != sorted(set(buckets)):
            yield Problem(f"{field}.histogram_options.buckets", "expected bounds that grow")


_CHECKS: tuple[Callable[[ModelConfig], Iterator[Problem]], ...] = (
    validation_batching.max_batch_size,
    _tensors,
    _files,
    _version_policy,
    _instance_groups,
    validation_batching.batching,
    validation_ensemble.ensemble,
    validation_parameters.settings,
    _warmup,
    _response_cache,
    _metrics,
    agents.problems,
)
