"""Text for Prometheus. Source: Prometheus, docs/instrumenting/exposition_formats.md, text format 0.0.4."""

from collections.abc import Mapping

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def family(name: str, kind: str, about: str, values: Mapping[str, float]) -> str:
    """Return a metric with its values by labels ("" for none), which need no escapes: they are words and names of ours.

    kind: gauge, counter or histogram. A key that begins with "_" is a suffix of the name, with the labels after it.
    """
    lines = (f"{name}{_sample(labels)} {value}\n" for labels, value in values.items())
    return f"# HELP {name} {about}\n# TYPE {name} {kind}\n{''.join(lines)}"


def _sample(labels: str) -> str:
    if labels.startswith("_"):
        suffix, _, rest = labels.partition(" ")
        return f"{suffix}{{{rest}}}"
    return f"{{{labels}}}" if labels else ""
