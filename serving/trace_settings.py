"""The trace settings: of the server, and of models that differ from it. Source: Triton, docs/protocol/extension_trace.md."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from serving.errors import invalid, unsupported
from serving.trace_config import TraceSetting

LEVELS = ("TIMESTAMPS", "TENSORS")
_MAX = (1 << 31) - 1
# setting of the protocol -> its name in --trace-config, its least value
_NUMBERS = {"trace_rate": ("rate", 0), "trace_count": ("count", -1), "log_frequency": ("log-frequency", 0)}


@dataclass(slots=True)
class Sampler:
    """The settings in force for some models, and how far their sampling has come."""

    levels: tuple[str, ...]
    rate: int
    count: int
    log_frequency: int
    seen: int = 0

    @property
    def active(self) -> bool:
        return bool(self.levels and self.rate and self.count)

    def takes_next(self) -> bool:
        """Whether to trace this request: one of `rate`, and no more than `count` of them."""
        if not self.active:
            return False
        self.seen += 1
        if self.seen % self.rate:
            return False
        self.count -= self.count > 0
        return True


class TraceSettings:
    """`on_change` is called after each update."""

    def __init__(self, config: Iterable[TraceSetting]) -> None:
        self.on_change: Callable[[], None] = lambda: None
        given = {setting: value for _, setting, value in config}
        self.mode = given.get("mode", "triton")
        self.file = given.get("file", "")
        self._start: dict[str, Any] = {
            "trace_level": _levels([value for _, setting, value in config if setting == "level"] or ["OFF"]),
            "trace_rate": int(given.get("rate", 1000)),
            "trace_count": int(given.get("count", -1)),
            "log_frequency": int(given.get("log-frequency", 0)),
        }
        self._server: dict[str, Any] = {}  # what was changed since the start
        self._models: dict[str, dict[str, Any]] = {}
        self._samplers: dict[str, Sampler] = {}
        self._refresh([""])

    @property
    def active(self) -> bool:
        """Whether any request may be traced."""
        return self.mode == "triton" and any(sampler.active for sampler in self._samplers.values())

    def sampler(self, model: str) -> Sampler:
        return self._samplers.get(model) or self._samplers[""]

    def values(self, model: str = "") -> dict[str, list[str]]:
        """As the protocol names them; trace_count is what is left of it."""
        sampler = self.sampler(model)
        return {
            "trace_level": list(sampler.levels) or ["OFF"],
            "trace_rate": [str(sampler.rate)],
            "trace_count": [str(sampler.count)],
            "log_frequency": [str(sampler.log_frequency)],
            "trace_file": [self.file],
            "trace_mode": [self.mode],
        }

    def update(self, model: str, changes: Mapping[str, list[str] | None]) -> None:
        """All of the changes, or none. None clears a setting: a model's follows the server's, the server's its start."""
        if self.mode != "triton":
            raise unsupported(f"trace settings of mode '{self.mode}' can not be changed while the server runs")
        checked = {name: None if value is None else _checked(name, value) for name, value in changes.items()}
        own = dict(self._models.get(model, {})) if model else dict(self._server)
        for name, value in checked.items():
            if value is None:
                own.pop(name, None)
            else:
                own[name] = value
        if model:
            self._models[model] = own
            self._refresh([model])
        else:
            self._server = own
            self._refresh(["", *self._models])
        self.on_change()

    def _refresh(self, names: Iterable[str]) -> None:
        for name in names:
            values = self._start | self._server | self._models.get(name, {})
            self._samplers[name] = Sampler(
                values["trace_level"], values["trace_rate"], values["trace_count"], values["log_frequency"]
            )


def _checked(name: str, value: list[str]) -> Any:
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
    for level in value:
        if level == "TENSORS":
            raise unsupported("trace level TENSORS is not supported by this server")
        if level not in LEVELS:
            raise invalid(f"expected trace levels TIMESTAMPS, or OFF alone, got {value!s:.100}")
    return tuple(dict.fromkeys(value))
