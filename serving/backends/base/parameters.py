"""Reads typed values from the strings in config.pbtxt: `parameters { key: "..." value { string_value: "..." } }`."""

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.core.errors import invalid

log = logging.getLogger(__name__)

_BOOLEANS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


class Parameters:
    """String settings by key. The error for a wrong value names the key, the expected form and the value."""

    def __init__(self, values: Mapping[str, str], noun: str = "parameter") -> None:
        self.values = dict(values)
        self.noun = noun

    @classmethod
    def of(cls, config: ModelConfig) -> "Parameters":
        return cls({key: value.string_value for key, value in config.parameters.items()})

    def integer(self, key: str, default: int, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        text = self.values.get(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            raise self.wrong(key, "an integer") from None
        if not minimum <= value <= maximum:
            raise self.wrong(key, f"an integer from {minimum} to {maximum}")
        return value

    def boolean(self, key: str, default: bool) -> bool:
        """Return True for "true", "1" and "on", and False for "false", "0" and "off", in upper or lower case."""
        text = self.values.get(key)
        if text is None:
            return default
        try:
            return _BOOLEANS[text.strip().lower()]
        except KeyError:
            raise self.wrong(key, "'true' or 'false'") from None

    def choice(self, key: str, choices: Mapping[str, str], default: str) -> str:
        """Return the value of a setting. choices: maps the allowed words to values."""
        text = self.values.get(key)
        if text is None:
            return default
        try:
            return choices[text]
        except KeyError:
            raise self.wrong(key, "one of " + ", ".join(choices)) from None

    def wrong(self, key: str, expected: str) -> Exception:
        return invalid(f"{self.noun} '{key}' must be {expected}, but is '{self.values[key]}'")

    def warn_of_unknown(self, known: set[str], prefixes: tuple[str, ...] = ()) -> None:
        """Warn of unknown keys. As in Triton, unknown keys are no errors, because clients may use them."""
        for key in sorted(self.values.keys() - known):
            if not key.startswith(("slipway.", *prefixes)):
                log.warning("%s '%s' means nothing to this backend and is ignored", self.noun, key)


def available_cores() -> int:
    """Return how many cores this process may use: within its affinity, and within its container's CPU quota, if any."""
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cores = min(cores, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass  # there is no cgroup v2
    return cores


def default_threads(config: ModelConfig) -> int:
    """Return the number of threads of each instance on the CPU, so that all instances together fit this process's cores."""
    instances: int = sum(group.count for group in config.instance_group)
    return max(1, available_cores() // max(1, instances))
