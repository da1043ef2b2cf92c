"""Converts between a configuration and the fields of a form.

`Fields` has one field for each control of the form. Fields that are written into a configuration may hold numbers and lists of
numbers as text, as a browser sends them ("8, 16"). Fields that are left out do not change, nor does a part of the configuration
for which the form has no field.
"""

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypeAlias, TypedDict, cast

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

from dashboard.configuration import running_fields
from dashboard.configuration.field_values import FieldError, named, numbers, rows, truth, whole_number
from dashboard.configuration.running_fields import RunningFields, apply_running

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

    Item: TypeAlias = mc.ModelInstanceGroup | mc.ModelInput | mc.ModelOutput

DATA_TYPES = [name.removeprefix("TYPE_") for name in mc.DataType.DESCRIPTOR.values_by_name]
KINDS = [name.removeprefix("KIND_") for name in mc.ModelInstanceGroup.Kind.DESCRIPTOR.values_by_name]


class Scalar(NamedTuple):
    """A field of the form for one field of the configuration. read: converts the form's value."""

    path: str
    read: Callable[[str, object], object]


def _text(field: str, value: object) -> str:
    return str(value)


_from_zero = partial(whole_number, least=0)
SCALARS = {
    "backend": Scalar("backend", _text),
    "platform": Scalar("platform", _text),
    "default_model_filename": Scalar("default_model_filename", _text),
    "max_batch_size": Scalar("max_batch_size", whole_number),
    "preferred_batch_size": Scalar("dynamic_batching.preferred_batch_size", numbers),
    "max_queue_delay_microseconds": Scalar("dynamic_batching.max_queue_delay_microseconds", _from_zero),
    "preserve_ordering": Scalar("dynamic_batching.preserve_ordering", lambda _, value: truth(value)),
    "priority_levels": Scalar("dynamic_batching.priority_levels", _from_zero),
    "default_priority_level": Scalar("dynamic_batching.default_priority_level", _from_zero),
}
# form field -> its path in the configuration. If several paths are prefixes of a given path, the longest one counts.
PATHS: dict[str, str] = {
    **{name: scalar.path for name, scalar in SCALARS.items()},
    "batching": "dynamic_batching",
    "queue_timeout_microseconds": "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "queue_max_size": "dynamic_batching.default_queue_policy.max_queue_size",
    "queue_timeout_action": "dynamic_batching.default_queue_policy.timeout_action",
    "queue_allow_timeout_override": "dynamic_batching.default_queue_policy.allow_timeout_override",
    "queue_policies": "dynamic_batching.priority_queue_policy",
    "instance_groups": "instance_group",
    "version_policy": "version_policy",
    "version_policy_latest": "version_policy.latest.num_versions",
    "version_policy_specific": "version_policy.specific.versions",
    "inputs": "input",
    "outputs": "output",
    **running_fields.PATHS,
}
_LISTS = ("inputs", "outputs", "instance_groups", "warmups")
# form field -> the field of a queue policy
_QUEUE = {
    "queue_timeout_microseconds": "default_timeout_microseconds",
    "queue_max_size": "max_queue_size",
    "queue_timeout_action": "timeout_action",
    "queue_allow_timeout_override": "allow_timeout_override",
}


class GroupFields(TypedDict):
    """An instance group."""

    name: str
    count: int
    kind: str  # AUTO, GPU, CPU or MODEL
    gpus: list[int]


class TensorFields(TypedDict):
    """An input or an output."""

    name: str
    data_type: str  # the name in the configuration without TYPE_, such as "FP32"; a text is "STRING"
    dims: list[int]
    reshape: list[int] | None
    optional: NotRequired[bool]  # only inputs have it
    label_filename: NotRequired[str]  # only outputs have it


class QueueFields(TypedDict):
    """A queue policy."""

    queue_timeout_microseconds: int  # 0 is none
    queue_max_size: int  # 0 is none
    queue_timeout_action: str  # "REJECT" or "DELAY"
    queue_allow_timeout_override: bool


class LevelFields(QueueFields):
    """The queue policy of one priority level."""

    level: int


class Fields(RunningFields, total=False):
    """A configuration as the fields of a form: the fields below and those in SCALARS; no fields if the text has mistakes."""

    batching: bool  # whether there is a dynamic batcher
    queue_timeout_microseconds: int  # 0 is none
    queue_max_size: int  # 0 is none
    queue_timeout_action: str  # "REJECT" or "DELAY"
    queue_allow_timeout_override: bool
    queue_policies: list[LevelFields]
    instance_groups: list[GroupFields]
    version_policy: str  # "latest", "all" or "specific"
    version_policy_latest: int  # how many
    version_policy_specific: list[int]
    inputs: list[TensorFields]
    outputs: list[TensorFields]


def field_for(path: str) -> str:
    """Return the form field that shows a path of the configuration; "" if no field does.

    A path inside an item gives the path of the item's field: "input[0].dims" is "inputs[0].dims".
    """
    fits = [
        name
        for name, prefix in PATHS.items()
        if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", ".", "[")
    ]
    if not fits:
        return ""
    name = max(fits, key=lambda fit: len(PATHS[fit]))
    return name + path[len(PATHS[name]) :] if name in _LISTS else name


# -- configuration -> fields -----------------------------------------------------------------------------------------


def fields_of(config: ModelConfig) -> Fields:
    """Return a configuration as the fields of the form."""
    batching, policy = config.dynamic_batching, config.version_policy
    policies = batching.priority_queue_policy
    found: Fields = {
        "batching": config.WhichOneof("scheduling_choice") == "dynamic_batching",
        "queue_policies": [{"level": level, **_queue_fields(policies[level])} for level in sorted(policies)],
        "instance_groups": [_group_fields(group) for group in config.instance_group],
        "version_policy": policy.WhichOneof("policy_choice") or "latest",
        "version_policy_latest": policy.latest.num_versions or 1,
        "version_policy_specific": list(policy.specific.versions),
        "inputs": [{**_tensor_fields(tensor), "optional": tensor.optional} for tensor in config.input],
        "outputs": [{**_tensor_fields(tensor), "label_filename": tensor.label_filename} for tensor in config.output],
    }
    scalars = {name: _scalar(config, scalar) for name, scalar in SCALARS.items()}
    queue = _queue_fields(batching.default_queue_policy)
    return cast(Fields, {**scalars, **found, **queue, **running_fields.running_fields(config)})


def _scalar(config: ModelConfig, scalar: Scalar) -> object:
    value = attrgetter(scalar.path)(config)
    return value if isinstance(value, str | int) else list(value)


def _queue_fields(queue: mc.ModelQueuePolicy) -> QueueFields:
    return {
        "queue_timeout_microseconds": queue.default_timeout_microseconds,
        "queue_max_size": queue.max_queue_size,
        "queue_timeout_action": mc.ModelQueuePolicy.TimeoutAction.Name(queue.timeout_action),
        "queue_allow_timeout_override": queue.allow_timeout_override,
    }


def _group_fields(group: mc.ModelInstanceGroup) -> GroupFields:
    kind = mc.ModelInstanceGroup.Kind.Name(group.kind).removeprefix("KIND_")
    return {"name": group.name, "count": group.count or 1, "kind": kind, "gpus": list(group.gpus)}


def _tensor_fields(tensor: mc.ModelInput | mc.ModelOutput) -> TensorFields:
    return {
        "name": tensor.name,
        "data_type": mc.DataType.Name(tensor.data_type).removeprefix("TYPE_"),
        "dims": list(tensor.dims),
        "reshape": list(tensor.reshape.shape) if tensor.HasField("reshape") else None,
    }


# -- fields -> configuration -----------------------------------------------------------------------------------------


def apply_fields(config: ModelConfig, fields: Mapping[str, object]) -> None:
    """Write fields into a configuration.

    fields: names of Fields with their values, as JSON or as text.
    Raises FieldError if a name is unknown or a value has the wrong type.
    """
    for name in fields:
        if name not in PATHS:
            raise FieldError(name, f"there is no field '{name}'")
    _apply_batching(config, fields)
    for name, scalar in SCALARS.items():
        if name in fields:
            _apply_scalar(config, scalar, name, fields[name])
    _apply_version_policy(config, fields)
    for name, items, apply in (
        ("instance_groups", config.instance_group, _apply_group),
        ("inputs", config.input, _apply_tensor),
        ("outputs", config.output, _apply_tensor),
    ):
        if name in fields:
            _apply_items(name, items, fields[name], apply)
    apply_running(config, fields)


def _apply_batching(config: ModelConfig, fields: Mapping[str, object]) -> None:
    present = config.WhichOneof("scheduling_choice") == "dynamic_batching"
    if not truth(fields.get("batching", present)):
        if present:
            config.ClearField("dynamic_batching")
        return
    config.dynamic_batching.SetInParent()
    _apply_queue(config.dynamic_batching, fields)


def _apply_scalar(config: ModelConfig, scalar: Scalar, name: str, given: object) -> None:
    """Write a value, unless the message that would hold it is absent."""
    where, _, last = scalar.path.rpartition(".")
    if where and not config.HasField(where):
        return
    message = getattr(config, where) if where else config
    value = scalar.read(name, given)
    if isinstance(value, list):
        getattr(message, last)[:] = value
    else:
        setattr(message, last, value)


def _apply_queue(batching: mc.ModelDynamicBatching, fields: Mapping[str, object]) -> None:
    if any(name in fields for name in _QUEUE):
        _apply_policy("", batching.default_queue_policy, fields)
        if batching.default_queue_policy == mc.ModelQueuePolicy():
            batching.ClearField("default_queue_policy")
    if "queue_policies" in fields:
        _apply_policies(batching, fields["queue_policies"])


def _apply_policies(batching: mc.ModelDynamicBatching, given: object) -> None:
    wanted: dict[int, mc.ModelQueuePolicy] = {}
    for index, row in enumerate(rows("queue_policies", given)):
        field = f"queue_policies[{index}]"
        level = whole_number(f"{field}.level", row.get("level", ""), least=1)
        if level in wanted:
            raise FieldError(f"{field}.level", f"level {level} is given twice")
        wanted[level] = mc.ModelQueuePolicy()
        if level in batching.priority_queue_policy:
            wanted[level].CopyFrom(batching.priority_queue_policy[level])
        _apply_policy(f"{field}.", wanted[level], row)
    for level in [level for level in batching.priority_queue_policy if level not in wanted]:
        del batching.priority_queue_policy[level]
    for level, policy in wanted.items():
        batching.priority_queue_policy[level].CopyFrom(policy)


def _apply_policy(path: str, queue: mc.ModelQueuePolicy, fields: Mapping[str, object]) -> None:
    for name in ("queue_timeout_microseconds", "queue_max_size"):
        if name in fields:
            setattr(queue, _QUEUE[name], whole_number(path + name, fields[name], least=0))
    if "queue_timeout_action" in fields:
        actions = mc.ModelQueuePolicy.TimeoutAction
        action = named(f"{path}queue_timeout_action", fields["queue_timeout_action"], "", actions)
        queue.timeout_action = mc.ModelQueuePolicy.TimeoutAction.ValueType(action)
    if "queue_allow_timeout_override" in fields:
        queue.allow_timeout_override = truth(fields["queue_allow_timeout_override"])


def _apply_version_policy(config: ModelConfig, fields: Mapping[str, object]) -> None:
    policy = config.version_policy
    kind = fields.get("version_policy", policy.WhichOneof("policy_choice") or "latest")
    if not any(name.startswith("version_policy") for name in fields):
        return
    if kind == "all":
        policy.all.SetInParent()
    elif kind == "specific":
        given = fields.get("version_policy_specific", list(policy.specific.versions))
        policy.specific.versions[:] = numbers("version_policy_specific", given)
        policy.specific.SetInParent()
    elif kind == "latest":
        _apply_latest(config, fields)
    else:
        raise FieldError("version_policy", f"expected latest, all or specific, not '{kind}'")


def _apply_latest(config: ModelConfig, fields: Mapping[str, object]) -> None:
    """Set the number of latest versions. If there is no policy, 1 is not written, because it is the default."""
    count = whole_number("version_policy_latest", fields.get("version_policy_latest", 1), least=1)
    absent = config.version_policy.WhichOneof("policy_choice") is None
    if not absent or count != 1:
        config.version_policy.latest.num_versions = count
    elif not config.HasField("version_policy"):
        config.ClearField("version_policy")


def _apply_items(
    field: str,
    items: "RepeatedCompositeFieldContainer[Item]",
    given: object,
    apply: "Callable[[str, Item, Mapping[str, object]], None]",
) -> None:
    """Replace the items of a list. Fields that the form lacks are kept from the old item with the same name, else index."""
    old = list(items)
    by_name = {item.name: item for item in old}
    made = []
    for index, values in enumerate(rows(field, given)):
        same = by_name.get(values.get("name", ""), old[index] if index < len(old) else None)
        message = type(same)() if same is not None else items.add()
        if same is not None:
            message.CopyFrom(same)
        apply(f"{field}[{index}]", message, values)
        made.append(message)
    copies = [type(message).FromString(message.SerializeToString()) for message in made]
    del items[:]
    items.extend(copies)


def _apply_group(field: str, group: mc.ModelInstanceGroup, values: Mapping[str, object]) -> None:
    if "name" in values:
        group.name = str(values["name"])
    if "count" in values:
        group.count = whole_number(f"{field}.count", values["count"], least=1)
    if "kind" in values:
        group.kind = named(f"{field}.kind", values["kind"], "KIND_", mc.ModelInstanceGroup.Kind)
    if "gpus" in values:
        group.gpus[:] = numbers(f"{field}.gpus", values["gpus"])


def _apply_tensor(field: str, tensor: mc.ModelInput | mc.ModelOutput, values: Mapping[str, object]) -> None:
    if "name" in values:
        tensor.name = str(values["name"]).strip()
    if "data_type" in values:
        tensor.data_type = named(f"{field}.data_type", values["data_type"], "TYPE_", mc.DataType)
    if "dims" in values:
        tensor.dims[:] = numbers(f"{field}.dims", values["dims"])
    if "reshape" in values:
        tensor.ClearField("reshape")
        if values["reshape"] not in (None, ""):
            tensor.reshape.shape[:] = numbers(f"{field}.reshape", values["reshape"])
            tensor.reshape.SetInParent()
    if "optional" in values and hasattr(tensor, "optional"):
        tensor.optional = truth(values["optional"])
    if "label_filename" in values and hasattr(tensor, "label_filename"):
        tensor.label_filename = str(values["label_filename"]).strip()
