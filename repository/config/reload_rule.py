"""The reload rule: the changes of a configuration that a serving model takes without a reload, and those that need one.

The server applies this rule when a client asks to load a model again. The dashboard applies the same rule to say in advance
what a change will do.
"""

from collections.abc import Iterator
from typing import Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig

from repository.config import version_settings
from repository.config.backends import KINDS
from repository.config.model_config import SLIPWAY_PREFIX
from repository.config.own_parameters import OWN_PARAMETERS

# none: the same configuration in another form. in_place: the serving model takes the change. versions: some versions are loaded
# or unloaded, all others are untouched. reload: new versions are built while the old ones serve.
Effect = Literal["none", "in_place", "versions", "reload"]

_IN_PLACE = [key for kind in KINDS.values() for key in kind.instance_counts]


def effect(old: ModelConfig, new: ModelConfig) -> Effect:
    """Return the effect of loading `new` on a model that serves with `old`."""
    if not all(same_build(one, other) for one, other in _by_version(old, new)):
        return "reload"
    if old.version_policy != new.version_policy:
        return "versions"
    return "none" if old == new else "in_place"


def _by_version(old: ModelConfig, new: ModelConfig) -> Iterator[tuple[ModelConfig, ModelConfig]]:
    """Yield the old and new configuration of the model, then those of each version that has its own settings."""
    before, after = (version_settings.of_versions(config) for config in (old, new))
    yield old, new
    for number in {*before, *after}:
        yield before.get(number, old), after.get(number, new)


def same_build(old: ModelConfig, new: ModelConfig) -> bool:
    """Return whether a version that was built for `old` can serve under `new`. An empty name equals any name."""
    one, other = _built(old), _built(new)
    if not one.name or not other.name:
        one.name = other.name = ""
    return bool(one == other)


def _built(config: ModelConfig) -> ModelConfig:
    """Return the configuration without the fields that a serving model takes without a reload."""
    built = ModelConfig()
    built.CopyFrom(config)
    built.ClearField("version_policy")
    if not config.HasField("sequence_batching"):
        built.ClearField("dynamic_batching")
    # If each kind of GPU has a file, the instance groups decide which file is loaded.
    if not config.cc_model_filenames:
        built.ClearField("instance_group")
    for key in [key for key in built.parameters if key.startswith(SLIPWAY_PREFIX)]:
        own = OWN_PARAMETERS.get(key.removeprefix(SLIPWAY_PREFIX))
        if own is None or not own.built_in:
            del built.parameters[key]
    for key in _IN_PLACE:
        built.parameters.pop(key, None)
    return built
