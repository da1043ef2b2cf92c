"""The trace settings of the server and of single models. Source: Triton, docs/protocol/extension_trace.md."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from serving.cli import trace_config
from serving.cli.trace_config import LEVELS, TraceSetting
from serving.core.errors import invalid, unsupported

log = logging.getLogger(__name__)

_MAX = (1 << 31) - 1
# setting of the protocol -> its name in --trace-config, its lowest value
_NUMBERS = {"trace_rate": ("rate", 0), "trace_count": ("count", -1), "log_frequency": ("log-frequency", 0)}

Value: TypeAlias = int | tuple[str, ...]
Values: TypeAlias = dict[str, Value]


@dataclass(slots=True, eq=False)
class Sampler:
    """The current settings of one model, or of all models without separate settings, and how far their sampling is."""

    levels: tuple[str, ...]
    rate: int
    count: int  # the number of traces that are left; -1 for any number
    log_frequency: int
    seen: int = 0
    begun: int = 0
    ended: int = 0
    replaced: bool = False  # True if other settings have replaced these, so that no more traces begin

    @property
    def active(self) -> bool:
        return bool(self.levels and self.rate and self.count)

    @property
    def complete(self) -> bool:
        """Whether no trace is running and none will begin."""
        return self.begun == self.ended and (self.replaced or not self.count)

    def takes_next(self) -> bool:
        """Return whether to trace the next request: every `rate`-th request is traced, until `count` is 0."""
        if not self.active:
            return False
        self.seen += 1
        if self.seen % self.rate:
            return False
        self.count -= self.count > 0
        self.begun += 1
        return True


class TraceSettings:
    """The settings of the server and of single models. Used on the event loop's thread."""

    def __init__(self, config: Iterable[TraceSetting]) -> None:
        self._listeners: list[Callable[[], None]] = []
        config = tuple(config)
        given = {setting: value for _, setting, value in config}
        self.mode = given.get("mode", "triton")
        self.file = given.get("file", "")
        self._exporter = trace_config.describe(config)
        levels = trace_config.levels(config)
        self._start: Values = {
            "trace_level": levels,
            "trace_rate": int(given.get("rate", 1000)),
            "trace_count": int(given.get("count", -1)),
            "log_frequency": int(given.get("log-frequency", 0)),
        }
        self._own: dict[str, Values] = {"": {}}  # server ("") or model -> the settings changed since the start
        self._samplers = {"": _sampler(self._start)}
        if self.mode == "triton" and levels and not self.file:
            log.warning("nothing is traced: --trace-config triton,file=<path> names no file")
        if self.mode != "triton" and "TENSORS" in levels:
            log.warning("tensors are traced to files only, not with mode=%s", self.mode)

    def subscribe(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    @property
    def active(self) -> bool:
        """Whether any request may be traced to a file."""
        if self.mode != "triton" or not self.file:
            return False
        return any(sampler.active for sampler in self._samplers.values())

    def sampler(self, model: str) -> Sampler:
        return self._samplers.get(model) or self._samplers[""]

    def values(self, model: str = "") -> dict[str, list[str]]:
        """Return the settings with the protocol's names. trace_count: how many more requests are traced."""
        sampler = self.sampler(model)
        values = {
            "trace_level": list(sampler.levels) or ["OFF"],
            "trace_rate": [str(sampler.rate)],
            "trace_count": [str(sampler.count)],
            "trace_mode": [self.mode],
        }
        if self.mode == "triton":
            return values | {"log_frequency": [str(sampler.log_frequency)], "trace_file": [self.file]}
        return values | {name: [value] for name, value in self._exporter.items()}

    def update(self, model: str, changes: Mapping[str, list[str] | None]) -> None:
        """Apply all of the changes, or none. A value of None resets a setting: a model then uses the server's value, and the
        server uses the value of its command line."""
        if self.mode != "triton":
            raise unsupported(f"trace settings of mode '{self.mode}' can not be changed while the server runs")
        checked = {name: None if value is None else _checked(name, value) for name, value in changes.items()}
        values = self._own.get(model, {}) | checked
        own = self._own | {model: {name: value for name, value in values.items() if value is not None}}
        if not own[model] and model:
            del own[model]
        samplers = self._samplers_of(own, model, checked)
        for sampler in samplers.values():
            self._refuse_useless(sampler)
        for name, old in self._samplers.items():
            old.replaced = samplers.get(name) is not old
        self._own, self._samplers = own, samplers
        for listener in self._listeners:
            listener()

    def _samplers_of(
        self, own: Mapping[str, Values], changed: str, changes: Mapping[str, Value | None]
    ) -> dict[str, Sampler]:
        """Return the samplers, with new samplers for changed settings. A new sampler continues with the traces that are left of
        its model's `trace_count`, unless this change sets `trace_count` again."""
        found: dict[str, Sampler] = {}
        below = self._start
        for name in ["", *(model for model in own if model)]:
            before = self._samplers.get(name)
            if before is not None and changed not in ("", name):
                found[name] = before
            else:
                values = below | own[name]
                if (
                    "trace_count" in own[name]
                    and before is not None
                    and not (changed == name and "trace_count" in changes)
                ):
                    values["trace_count"] = before.count
                found[name] = _sampler(values)
            if not name:
                below = _values(found[""])
        return found

    def _refuse_useless(self, sampler: Sampler) -> None:
        if sampler.levels and not self.file:
            raise invalid("tracing needs a trace file, which --trace-config triton,file=<path> names at the start")
        if sampler.levels and not sampler.rate:
            raise invalid("tracing needs a 'trace_rate' of at least 1")


def _sampler(values: Values) -> Sampler:
    levels = cast("tuple[str, ...]", values["trace_level"])
    rate, count, log_frequency = (cast(int, values[name]) for name in _NUMBERS)
    return Sampler(levels, rate, count, log_frequency)


def _values(sampler: Sampler) -> Values:
    return {
        "trace_level": sampler.levels,
        "trace_rate": sampler.rate,
        "trace_count": sampler.count,
        "log_frequency": sampler.log_frequency,
    }


def _checked(name: str, value: list[str]) -> Value:
    if name == "trace_file":
        raise unsupported("trace file location can not be updated through network protocol")
    if name == "trace_level":
        return _levels(value)
    if name not in _NUMBERS:
        raise invalid(f"unrecognized trace setting '{name[:100]}'; expected trace_level, {', '.join(_NUMBERS)}")
    least = _NUMBERS[name][1]
    text = value[0] if len(value) == 1 else ""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 10 or not least <= int(text) <= _MAX:
        raise invalid(f"Unable to parse '{name}', expected one whole number of at least {least}, got: {value!s:.100}")
    return int(text)


def _levels(value: list[str]) -> tuple[str, ...]:
    if value == ["OFF"]:
        return ()
    if not value or not set(value) <= set(LEVELS):
        raise invalid(f"expected trace levels {' and '.join(LEVELS)}, or OFF alone, got {value!s:.100}")
    return tuple(level for level in LEVELS if level in value)
