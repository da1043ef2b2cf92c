"""What is logged, changeable while the server runs. Source: Triton, docs/protocol/extension_logging.md."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from serving.cli.options import Options
from serving.core.errors import ServingError, invalid, unavailable, unsupported

FORMATS = ("default", "ISO8601")
_FIELDS = {
    "log_info": "info",
    "log_warning": "warning",
    "log_error": "error",
    "log_verbose_level": "verbose_level",
    "log_format": "format",
}


@dataclass(slots=True)
class LogSettings:
    """Read by the log's handler for each line."""

    info: bool = True
    warning: bool = True
    error: bool = True
    verbose_level: int = 0
    format: str = "default"
    on_change: Callable[[], None] = lambda: None

    @classmethod
    def from_options(cls, options: Options) -> "LogSettings":
        return cls(options.log_info, options.log_warning, options.log_error, options.log_verbose, options.log_format)

    def values(self) -> dict[str, bool | int | str]:
        """As the protocol names them, in Triton's order."""
        return {"log_file": ""} | {name: getattr(self, field) for name, field in _FIELDS.items()}

    def update(self, changes: Mapping[str, Any]) -> None:
        """All of the changes, or none: None leaves a setting as it is. INVALID_ARG for a wrong value; a file is never taken."""
        wanted = replace(self)
        for name, value in changes.items():
            if value is None:
                continue
            if name == "log_file":
                raise unsupported("log file location can not be updated through network protocol")
            if name not in _FIELDS:
                raise invalid(f"unrecognized log setting '{name[:100]}'; expected one of {', '.join(_FIELDS)}")
            _check(name, value)
            setattr(wanted, _FIELDS[name], value)
        for field in _FIELDS.values():
            setattr(self, field, getattr(wanted, field))
        self.on_change()


def _check(name: str, value: Any) -> None:
    if name == "log_format":
        if value not in FORMATS:
            raise _wrong_format(value)
    elif name == "log_verbose_level":
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise invalid("expected 'log_verbose_level' to be a whole number of at least 0")
    elif not isinstance(value, bool):
        raise invalid(f"expected '{name}' to be a boolean")


def _wrong_format(value: Any) -> ServingError:
    """UNAVAILABLE, as Triton answers."""
    return unavailable(f"invalid argument for log_format, expected {' or '.join(FORMATS)}, got: {str(value)[:100]}")
