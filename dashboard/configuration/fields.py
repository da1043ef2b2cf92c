"""A configuration as the fields of a form, and the fields of a form as a configuration.

`Fields` has one field for each control of the form. What is laid over a configuration may have numbers and lists of numbers as
text, as a browser sends them ("8, 16"). What it leaves out stays as it is; so does what the form has no field for.
"""

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NotRequired, TypeAlias, TypedDict

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc.model_config_pb2 import ModelConfig

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

    Item: TypeAlias = mc.ModelInstanceGroup | mc.ModelInput | mc.ModelOutput

DATA_TYPES = [name.removeprefix("TYPE_") for name in mc.DataType.DESCRIPTOR.values_by_name]
KINDS = [name.removeprefix("KIND_") for name in mc.ModelInstanceGroup.Kind.DESCRIPTOR.values_by_name]

_BATCHING = ("preferred_batch_size", "max_queue_delay_microseconds", "preserve_ordering", "priority_levels")
# form field -> the path of the configuration that it stands for; the longest prefix wins.
PATHS: dict[str, str] = {
    "backend": "backend",
    "platform": "platform",
    "default_model_filename": "default_model_filename",
    "max_batch_size": "max_batch_size",
    "batching": "dynamic_batching",
    **{name: f"dynamic_batching.{name}" for name in (*_BATCHING, "default_priority_level")},
    "queue_timeout_microseconds": "dynamic_batching.default_queue_policy.default_timeout_microseconds",
    "queue_max_size": "dynamic_batching.default_queue_policy.max_queue_size",
    "queue_timeout_action": "dynamic_batching.default_queue_policy.timeout_action",
    "queue_allow_timeout_override": "dynamic_batching.default_queue_policy.allow_timeout_override",
    "instance_groups": "instance_group",
    "version_policy": "version_policy",
    "version_policy_latest": "version_policy.latest.num_versions",
    "version_policy_specific": "version_policy.specific.versions",
    "inputs": "input",
    "outputs": "output",
}
_BATCHER_FIELDS = [name for name, path in PATHS.items() if path.startswith("dynamic_batching.")]


class GroupFields(TypedDict):
    """An instance group."""

    name: str
    count: int
    kind: str  # AUTO, GPU, CPU or MODEL
    gpus: list[int]


class TensorFields(TypedDict):
    """An input or an output."""

    name: str
    data_type: str  # "FP32"; of the configuration, so a text is "STRING"
    dims: list[int]
    reshape: list[int] | None
    optional: NotRequired[bool]  # of an input
    label_filename: NotRequired[str]  # of an output


class Fields(TypedDict, total=False):
    """A configuration as the fields of a form; without any fields for a text that is no configuration."""

    backend: str
    platform: str
    default_model_filename: str
    max_batch_size: int
    batching: bool  # whether there is a dynamic batcher
    preferred_batch_size: list[int]
    max_queue_delay_microseconds: int
    preserve_ordering: bool
    priority_levels: int
    default_priority_level: int
    queue_timeout_microseconds: int  # 0 is none
    queue_max_size: int  # 0 is none
    queue_timeout_action: str  # "REJECT" or "DELAY"
    queue_allow_timeout_override: bool
    instance_groups: list[GroupFields]
    version_policy: str  # "latest", "all" or "specific"
    version_policy_latest: int  # how many
    version_policy_specific: list[int]
    inputs: list[TensorFields]
    outputs: list[TensorFields]


class FieldError(ValueError):
    """The value of a field cannot become part of a configuration. `message` says what was expected."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field
        self.message = message


def field_for(path: str) -> str:
    """Return the form field that shows a path of the configuration; "" for none.

    A path inside an item gives the path of the item's field: "input[0].dims" is "inputs[0].dims".
    """
    fits = [name for name, prefix in PATHS.items() if re.match(re.escape(prefix) + r"($|[.\[])", path)]
    if not fits:
        return ""
    name = max(fits, key=lambda fit: len(PATHS[fit]))
    return name + path[len(PATHS[name]) :] if name in ("inputs", "outputs", "instance_groups") else name


# -- configuration -> fields -----------------------------------------------------------------------------------------


def fields_of(config: ModelConfig) -> Fields:
    """Return a configuration as the fields of the form."""
    batching, policy = config.dynamic_batching, config.version_policy
    queue = batching.default_queue_policy
    return {
        "backend": config.backend,
        "platform": config.platform,
        "default_model_filename": config.default_model_filename,
        "max_batch_size": config.max_batch_size,
        "batching": config.WhichOneof("scheduling_choice") == "dynamic_batching",
        "preferred_batch_size": list(batching.preferred_batch_size),
        "max_queue_delay_microseconds": batching.max_queue_delay_microseconds,
        "preserve_ordering": batching.preserve_ordering,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "queue_timeout_microseconds": queue.default_timeout_microseconds,
        "queue_max_size": queue.max_queue_size,
        "queue_timeout_action": mc.ModelQueuePolicy.TimeoutAction.Name(queue.timeout_action),
        "queue_allow_timeout_override": queue.allow_timeout_override,
        "instance_groups": [_group_fields(group) for group in config.instance_group],
        "version_policy": policy.WhichOneof("policy_choice") or "latest",
        "version_policy_latest": policy.latest.num_versions or 1,
        "version_policy_specific": list(policy.specific.versions),
        "inputs": [{**_tensor_fields(tensor), "optional": tensor.optional} for tensor in config.input],
        "outputs": [{**_tensor_fields(tensor), "label_filename": tensor.label_filename} for tensor in config.output],
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
    """Lay fields over a configuration, in place.

    fields: names of Fields with their values, as JSON or as text. FieldError: an unknown name, or a value of the wrong type.
    """
    for name in fields:
        if name not in PATHS:
            raise FieldError(name, f"there is no field '{name}'")
    for name in ("backend", "platform", "default_model_filename"):
        if name in fields:
            setattr(config, name, str(fields[name]))
    if "max_batch_size" in fields:
        config.max_batch_size = _whole("max_batch_size", fields["max_batch_size"])
    _apply_batching(config, fields)
    _apply_version_policy(config, fields)
    for name, items, apply in (
        ("instance_groups", config.instance_group, _apply_group),
        ("inputs", config.input, _apply_tensor),
        ("outputs", config.output, _apply_tensor),
    ):
        if name in fields:
            _apply_items(name, items, fields[name], apply)


def _apply_batching(config: ModelConfig, fields: Mapping[str, object]) -> None:
    present = config.WhichOneof("scheduling_choice") == "dynamic_batching"
    if not _truth(fields.get("batching", present)):
        if present:
            config.ClearField("dynamic_batching")
        return
    config.dynamic_batching.SetInParent()
    batching = config.dynamic_batching
    if "preferred_batch_size" in fields:
        batching.preferred_batch_size[:] = _numbers("preferred_batch_size", fields["preferred_batch_size"])
    for name in ("max_queue_delay_microseconds", "priority_levels", "default_priority_level"):
        if name in fields:
            setattr(batching, name, _whole(name, fields[name], least=0))
    if "preserve_ordering" in fields:
        batching.preserve_ordering = _truth(fields["preserve_ordering"])
    _apply_queue(batching, fields)


def _apply_queue(batching: mc.ModelDynamicBatching, fields: Mapping[str, object]) -> None:
    given = {name: fields[name] for name in _BATCHER_FIELDS if name.startswith("queue_") and name in fields}
    if not any(given.values()) or (
        given.get("queue_timeout_action") == "REJECT" and sum(map(bool, given.values())) == 1
    ):
        if given:
            batching.ClearField("default_queue_policy")
        return
    queue = batching.default_queue_policy
    if "queue_timeout_microseconds" in given:
        value = _whole("queue_timeout_microseconds", given["queue_timeout_microseconds"], least=0)
        queue.default_timeout_microseconds = value
    if "queue_max_size" in given:
        queue.max_queue_size = _whole("queue_max_size", given["queue_max_size"], least=0)
    if "queue_timeout_action" in given:
        actions = mc.ModelQueuePolicy.TimeoutAction
        queue.timeout_action = _named("queue_timeout_action", given["queue_timeout_action"], "", actions)
    if "queue_allow_timeout_override" in given:
        queue.allow_timeout_override = _truth(given["queue_allow_timeout_override"])


def _apply_version_policy(config: ModelConfig, fields: Mapping[str, object]) -> None:
    policy = config.version_policy
    kind = fields.get("version_policy", policy.WhichOneof("policy_choice") or "latest")
    if not any(name.startswith("version_policy") for name in fields):
        return
    if kind == "all":
        policy.all.SetInParent()
    elif kind == "specific":
        given = fields.get("version_policy_specific", list(policy.specific.versions))
        policy.specific.versions[:] = _numbers("version_policy_specific", given)
        policy.specific.SetInParent()
    elif kind == "latest":
        _apply_latest(config, fields)
    else:
        raise FieldError("version_policy", f"expected latest, all or specific, not '{kind}'")


def _apply_latest(config: ModelConfig, fields: Mapping[str, object]) -> None:
    """Set how many versions. The latest one alone is what an absent policy means, so that is not written where none was."""
    count = _whole("version_policy_latest", fields.get("version_policy_latest", 1), least=1)
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
    """Replace the items of a list. Each keeps what the form does not show of the old item with its name, or else its place."""
    if not isinstance(given, list) or not all(isinstance(item, dict) for item in given):
        raise FieldError(field, "expected a list of objects")
    old = list(items)
    by_name = {item.name: item for item in old}
    made = []
    for index, values in enumerate(given):
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
        group.count = _whole(f"{field}.count", values["count"], least=1)
    if "kind" in values:
        group.kind = _named(f"{field}.kind", values["kind"], "KIND_", mc.ModelInstanceGroup.Kind)
    if "gpus" in values:
        group.gpus[:] = _numbers(f"{field}.gpus", values["gpus"])


def _apply_tensor(field: str, tensor: mc.ModelInput | mc.ModelOutput, values: Mapping[str, object]) -> None:
    if "name" in values:
        tensor.name = str(values["name"]).strip()
    if "data_type" in values:
        tensor.data_type = _named(f"{field}.data_type", values["data_type"], "TYPE_", mc.DataType)
    if "dims" in values:
        tensor.dims[:] = _numbers(f"{field}.dims", values["dims"])
    if "reshape" in values:
        tensor.ClearField("reshape")
        if values["reshape"] not in (None, ""):
            tensor.reshape.shape[:] = _numbers(f"{field}.reshape", values["reshape"])
            tensor.reshape.SetInParent()
    if "optional" in values and hasattr(tensor, "optional"):
        tensor.optional = _truth(values["optional"])
    if "label_filename" in values and hasattr(tensor, "label_filename"):
        tensor.label_filename = str(values["label_filename"]).strip()


def _whole(field: str, value: object, least: int = -(1 << 31)) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise FieldError(field, f"expected a whole number, not '{text[:40]}'")
    number = int(text)
    if not least <= number < 1 << 31:
        raise FieldError(field, f"expected a number from {max(least, 0)} to {(1 << 31) - 1}, not {number}")
    return number


def _numbers(field: str, value: object) -> list[int]:
    parts = re.split(r"[,\s]+", value.strip(" ,[]")) if isinstance(value, str) else value
    if not isinstance(parts, list):
        raise FieldError(field, "expected a list of whole numbers")
    return [_long(field, part) for part in parts if part != ""]


def _long(field: str, value: object) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise FieldError(field, f"expected whole numbers, but found '{text[:40]}'")
    return int(text)


def _truth(value: object) -> bool:
    return value is True or str(value).lower() in ("true", "on", "1", "yes")


def _named(field: str, value: object, prefix: str, enum: "EnumTypeWrapper") -> int:
    name = str(value).upper().removeprefix(prefix)
    try:
        return int(enum.Value(prefix + name))
    except ValueError:
        known = ", ".join(key.removeprefix(prefix) for key in enum.DESCRIPTOR.values_by_name)
        raise FieldError(field, f"expected one of {known}, not '{str(value)[:40]}'") from None
