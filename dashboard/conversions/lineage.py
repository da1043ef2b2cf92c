"""Where a converted model comes from: its source files, recipe, packages and command, and how far its answers are apart."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from dashboard.conversions.recipes.table import VERSION, Recipe, Source

# What a recipe found out about its source: an MLflow folder's signature and input example, names of features, a task.
_FACTS = ("flavour", "task", "pooling", "normalised", "features", "signature_inputs", "signature_outputs", "example")
_MOST_FACT_BYTES = 16 << 10


def lineage(
    source: Source, recipe: Recipe, options: Mapping[str, Any], report: Mapping[str, Any], verdict: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the lineage as JSON. options: those with which the recipe ran. report: the recipe's. verdict: as JSON."""
    return {
        "source": [{"name": name, **_identity(source, name)} for name in source.names],
        "recipe": {"name": recipe.name, "version": VERSION, "options": dict(options)},
        "packages": report["packages"],
        "command": recipe.command(options),
        "warnings": report["warnings"],
        "facts": {name: report[name] for name in _FACTS if report.get(name) and _is_short(report[name])},
        "difference": dict(verdict),
    }


def _is_short(fact: Any) -> bool:
    """Return whether a fact is kept with the version: a long input example is not."""
    return len(json.dumps(fact)) <= _MOST_FACT_BYTES


def _identity(source: Source, name: str) -> dict[str, Any]:
    path = source.folder / name
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"sha256": digest, "bytes": path.stat().st_size}
