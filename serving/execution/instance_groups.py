"""Places a model's instances on the devices of this machine, as `instance_group` of the configuration says.

Source: Triton, docs/user_guide/model_configuration.md (Instance Groups).
"""

from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from serving.backends.base.backend import Backend
from serving.core.devices import CPU, Device, gpu_count
from serving.core.errors import invalid, unavailable
from serving.resources.rate_limiter import NO_DEMAND, Demand, demand_of


class Placement(NamedTuple):
    """One instance: Triton's name for it, its device, its demand on the rate limiter, and its host policy."""

    name: str
    device: Device
    demand: Demand = NO_DEMAND
    policy: str = "cpu"


def placements(config: ModelConfig, backend: type[Backend], strict: bool) -> tuple[list[Placement], list[str]]:
    """Return all placements, and a warning for each group that falls back to the CPU or names secondary devices.

    A passive group gets no instances, because they would get no requests.
    Raises UNAVAILABLE if a group needs a GPU, there is none, and `strict` forbids the fallback to the CPU.
    """
    groups = list(config.instance_group) or [ModelInstanceGroup(kind=ModelInstanceGroup.KIND_AUTO)]
    placed: list[Placement] = []
    warnings: list[str] = []
    if all(group.passive for group in groups):
        raise invalid("every instance group is passive: nothing would take requests")
    for number, group in enumerate(groups):
        if group.passive:
            continue
        if group.secondary_devices:
            warnings.append("the instance group names secondary_devices, which no backend here uses")
        devices, warning = _devices(group, backend, strict)
        if warning:
            warnings.append(warning)
        prefix = group.name or f"{config.name}_{number}"
        for device in devices:
            demand = demand_of(group, device)
            policy = group.host_policy or _default_policy(group, device)
            placed += [Placement(f"{prefix}_{index}", device, demand, policy) for index in range(max(1, group.count))]
    return placed, warnings


def _default_policy(group: ModelInstanceGroup, device: Device) -> str:
    if group.kind == ModelInstanceGroup.KIND_MODEL:
        return "model"
    return f"gpu_{device.id}" if device.kind == "gpu" else "cpu"


def _devices(group: ModelInstanceGroup, backend: type[Backend], strict: bool) -> tuple[list[Device], str]:
    kind = group.kind
    if kind in (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL):
        return [CPU], ""
    available, why = backend.gpu_available()
    if available:
        return [Device("gpu", index) for index in _gpu_indexes(group)], ""
    if kind == ModelInstanceGroup.KIND_AUTO:
        return [CPU], ""
    if strict:
        raise unavailable(f"the instance group asks for KIND_GPU, but {why}")
    return [CPU], f"the instance group asks for KIND_GPU, but {why}; its instances run on the CPU"


def _gpu_indexes(group: ModelInstanceGroup) -> list[int]:
    count = gpu_count()
    for index in group.gpus:
        if index >= count:
            raise invalid(f"the instance group names GPU {index}, but this machine has {count}, numbered from 0")
    return list(group.gpus) or list(range(count))
