"""The setting of a configuration, the settings around it, and the configuration of a setting."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from dashboard.advice.simulation import Setting
from repository.config.backends import KINDS
from repository.config.document import Document
from repository.config.model_config import OWN_SETTINGS, SLIPWAY_PREFIX, backend_of, is_ensemble

MOST_INSTANCES = 8
LONGEST_DELAY_MS = 100
_SIZES = (2, 4, 8, 16, 32, 64)


class Change(NamedTuple):
    """A field of the configuration with its values before and after, as text."""

    field: str
    before: str
    after: str


def unfit(document: Document) -> str:
    """Return why the simulation does not describe a model of this configuration, as a clause; "" if it does."""
    if document.mistake:
        return "its configuration has a mistake"
    config = document.message
    if is_ensemble(config):
        return "an ensemble has no batches of its own; look at its steps"
    if config.HasField("sequence_batching"):
        return "the sequence batcher has other rules"
    if config.model_transaction_policy.decoupled:
        return "a decoupled model answers as often as it likes"
    if config.response_cache.enable:
        return "the response cache answers some of its requests"
    if document.traffic is not None:
        return "a rollout shares its requests"
    if SLIPWAY_PREFIX + OWN_SETTINGS in config.parameters:
        return "its versions have settings of their own"
    kind = KINDS.get(backend_of(config))
    if kind is not None and kind.settings_file:
        return "its archive has settings, too"
    return ""


def setting_of(document: Document, gpus: int = 0) -> Setting:
    """Return the setting of a configuration without mistakes. gpus: the number of GPUs of the server."""
    config = document.message
    batching = config.dynamic_batching
    merges = config.HasField("dynamic_batching") and config.max_batch_size > 0
    preferred = _preferred(batching.preferred_batch_size, config.max_batch_size)
    return Setting(
        merges,
        max(1, config.max_batch_size),
        preferred if merges else (),
        batching.max_queue_delay_microseconds * 1000 if merges else 0,
        _instances(config, gpus),
    )


def _preferred(sizes: Iterable[int], max_rows: int) -> tuple[int, ...]:
    """Return the sizes that the batcher obeys, ascending."""
    return tuple(sorted(size for size in sizes if size <= max_rows))


def _instances(config: ModelConfig, gpus: int) -> int:
    """Return the number of instances that a server starts; see serving.configuration.effective_config."""
    groups = [group for group in config.instance_group if not group.passive] or [ModelInstanceGroup()]
    return sum(_instances_of(group, backend_of(config), gpus) for group in groups)


def _instances_of(group: ModelInstanceGroup, backend: str, gpus: int) -> int:
    kind, count = KINDS.get(backend), int(group.count)
    automatic = group.kind == ModelInstanceGroup.KIND_AUTO and gpus and backend != "python"
    if automatic or group.kind == ModelInstanceGroup.KIND_GPU:
        return max(1, count) * (len(group.gpus) or max(1, gpus))
    return count or (kind.cpu_instances if kind is not None else 1)


def batching_around(document: Document, present: Setting, gap_ms: float, full_share: float) -> list[Setting]:
    """Return settings with other batching than the present one. gap_ms: the mean gap between requests. full_share: the part of
    the batches that had the most rows, from 0 to 1."""
    return sorted({*_batching(document.message, present, gap_ms, full_share)} - {present})


def instances_around(document: Document, setting: Setting, gpus: int = 0) -> list[Setting]:
    """Return settings with more instances; none if they are on several devices, so that no single number sets how many."""
    groups, count = document.message.instance_group, setting.instances
    if len(groups) > 1 or (groups and groups[0].count not in (0, count)):
        return []
    if gpus > 1 and not (groups and (len(groups[0].gpus) == 1 or groups[0].kind == ModelInstanceGroup.KIND_CPU)):
        return []
    return [setting._replace(instances=one) for one in {count + 1, count * 2} if one <= MOST_INSTANCES]


def _batching(config: ModelConfig, present: Setting, gap_ms: float, full_share: float) -> Iterator[Setting]:
    yield present
    if config.max_batch_size < 2:
        return
    base = present._replace(merges=True)
    yield base
    for delay_ns in _delays(present, gap_ms):
        yield base._replace(delay_ns=delay_ns)
        for size in _SIZES:
            if size <= present.max_rows:
                yield base._replace(delay_ns=delay_ns, preferred=(size,))
        yield base._replace(delay_ns=delay_ns, preferred=())
    if full_share > 0.5 and backend_of(config) != "tensorrt":  # a plan limits the batch itself
        yield base._replace(max_rows=present.max_rows * 2, preferred=())


def _delays(present: Setting, gap_ms: float) -> set[int]:
    """Return delays in ns: none, half and double the present one, and the time in which some more requests come.

    Three gaps are the usual rule of thumb, such as 15 ms for requests that come every 5 ms.
    """
    by_gap = (float(f"{gap_ms * gaps:.2g}") for gaps in (1, 3, 7))
    delays = {0, *(round(one * 1000) * 1000 for one in by_gap if one <= LONGEST_DELAY_MS)}
    return delays | {present.delay_ns // 2 // 1000 * 1000, present.delay_ns, present.delay_ns * 2}


def with_setting(document: Document, present: Setting, wanted: Setting) -> Document:
    """Return the configuration with another setting; the rest of the text stays as it is."""

    def change(config: ModelConfig) -> None:
        if wanted.merges:
            batching = config.dynamic_batching
            batching.SetInParent()
            if wanted.preferred != _preferred(batching.preferred_batch_size, wanted.max_rows):
                del batching.preferred_batch_size[:]
                batching.preferred_batch_size.extend(wanted.preferred)
            if wanted.delay_ns != present.delay_ns:
                batching.max_queue_delay_microseconds = wanted.delay_ns // 1000
        if wanted.max_rows != present.max_rows:
            config.max_batch_size = wanted.max_rows
        if wanted.instances != present.instances:
            group = config.instance_group[0] if config.instance_group else config.instance_group.add()
            group.kind = group.kind or ModelInstanceGroup.KIND_AUTO
            group.count = wanted.instances

    return document.edited(change)


def changes(present: Setting, wanted: Setting) -> list[Change]:
    """Return what differs, in the words of config.pbtxt."""

    def sizes(setting: Setting) -> str:
        return f"[{', '.join(map(str, setting.preferred))}]" if setting.preferred else "none"

    rows = [
        Change("dynamic_batching", "off" if not present.merges else "on", "off" if not wanted.merges else "on"),
        Change("max_queue_delay_microseconds", str(present.delay_ns // 1000), str(wanted.delay_ns // 1000)),
        Change("preferred_batch_size", sizes(present), sizes(wanted)),
        Change("max_batch_size", str(present.max_rows), str(wanted.max_rows)),
        Change("instance_group.count", str(present.instances), str(wanted.instances)),
    ]
    return [row for row in rows if row.before != row.after]
