"""--trace-config: which requests are traced, and where traces go. Source of the syntax: Triton, user_guide/trace.md."""

import argparse
from collections.abc import Iterable
from dataclasses import dataclass, field

TraceSetting = tuple[str, str, str]  # mode ("" for both modes), setting, value
LEVELS = ("TIMESTAMPS", "TENSORS")
# The values that tritonserver accepts for the level, and what each means; min and max are older names.
_LEVELS = dict.fromkeys(("timestamps", "min", "max", "true", "on"), "TIMESTAMPS")
_LEVELS |= {"tensors": "TENSORS", "off": "OFF", "false": "OFF"}
DEFAULT_URL = "http://localhost:4318/v1/traces"
_SETTINGS = {
    "": ("mode", "level", "rate", "count"),
    "triton": ("file", "log-frequency"),
    "opentelemetry": ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"),
}
# tritonserver's older names of the settings
DEPRECATED_TRACE_FLAGS = {
    "--trace-file": "triton,file",
    "--trace-log-frequency": "triton,log-frequency",
    "--trace-level": "level",
    "--trace-rate": "rate",
    "--trace-count": "count",
}


@dataclass(frozen=True, slots=True)
class TraceConfig:
    """All settings of mode=opentelemetry.

    rate: one of `rate` requests is traced; if 0, only requests that carry a trace context are traced.
    count: the number of requests to trace; -1 for no limit.
    """

    timestamps: bool = False
    rate: int = 1000
    count: int = -1
    url: str = DEFAULT_URL
    resource: dict[str, str] = field(default_factory=dict)
    bsp_max_queue_size: int = 2048
    bsp_schedule_delay: int = 5000
    bsp_max_export_batch_size: int = 512


def trace_setting_of(name: str, value: str) -> TraceSetting:
    """Parse the value of an older flag for one setting."""
    return trace_setting(f"{name}={value}")


def trace_setting(text: str) -> TraceSetting:
    """Parse one --trace-config: "rate=100", "mode=opentelemetry" or "opentelemetry,url=..."."""
    name, equals, value = text.partition("=")
    mode, _, setting = name.rpartition(",")
    mode = mode.lower()
    if setting == "mode":
        value = value.lower()
    elif setting == "level":
        value = _LEVELS.get(value.lower(), value)
    if not equals or setting not in _SETTINGS.get(mode, ()):
        known = [f"{mode},{setting}" if mode else setting for mode, group in _SETTINGS.items() for setting in group]
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(known)} with =<value>, got '{text}'")
    if setting == "mode" and value not in ("triton", "opentelemetry"):
        raise argparse.ArgumentTypeError(f"expected mode=triton or mode=opentelemetry, got '{text}'")
    if setting == "level" and value not in ("OFF", *LEVELS):
        raise argparse.ArgumentTypeError(f"expected level=OFF, level={' or level='.join(LEVELS)}, got '{text}'")
    if setting == "resource" and "=" not in value:
        raise argparse.ArgumentTypeError(f"expected opentelemetry,resource=<key>=<value>, got '{text}'")
    if setting in ("rate", "count", "log-frequency") or setting.startswith("bsp_"):
        least = {"rate": 0, "count": -1, "log-frequency": 0}.get(setting, 1)
        if not value.removeprefix("-").isdigit() or int(value) < least:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {least}, got '{text}'")
    return mode, setting, value


def read(settings: Iterable[TraceSetting]) -> TraceConfig | None:
    """Return all settings of mode=opentelemetry, or None if that is not the mode."""
    flat = {setting: value for mode, setting, value in settings if setting != "resource" and mode != "triton"}
    if flat.pop("mode", "") != "opentelemetry":
        return None
    resource = dict(value.split("=", 1) for _, setting, value in settings if setting == "resource")
    flat.pop("level", "")
    url = flat.pop("url", DEFAULT_URL)
    numbers = {setting: int(value) for setting, value in flat.items()}
    return TraceConfig(timestamps="TIMESTAMPS" in levels(settings), url=url, resource=resource, **numbers)


def levels(settings: Iterable[TraceSetting]) -> tuple[str, ...]:
    """Return the levels to trace; none if one flag sets OFF."""
    given = {value for _, setting, value in settings if setting == "level"}
    return () if "OFF" in given else tuple(level for level in LEVELS if level in given)


def describe(settings: Iterable[TraceSetting]) -> dict[str, str]:
    """Return the settings of mode=opentelemetry as the trace extension shows them."""
    config = read(settings)
    if config is None:
        return {}
    resource = (
        {"resource": ",".join(f"{key}={value}" for key, value in config.resource.items())} if config.resource else {}
    )
    numbers = {name: str(getattr(config, name)) for name in _SETTINGS["opentelemetry"] if name.startswith("bsp_")}
    return {"url": config.url} | resource | numbers
