"""The models that a recipe wrote, with the names and files that they have in the managed repository."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.shared.exceptions import Invalid
from repository.core.layout import CONFIG_FILE

PLACEHOLDER = "@NAME@"
LABELS = "labels.txt"


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """One model. config: its config.pbtxt, empty if the inspection proposes one. version: the files of the version's folder, by
    name; beside: those of the model's folder."""

    name: str
    config: str
    version: Mapping[str, Path]
    beside: Mapping[str, Path]


def converted_models(target: Path, report: Mapping[str, Any], name: str) -> list[ConvertedModel]:
    """Return the models of a conversion under the name that a person gave; an ensemble comes after its steps."""
    if "ensemble" not in report:
        return [_model(target / "model", name, name)]
    step = str(report["ensemble"]["step"])
    if not re.fullmatch("[a-z_]+", step):
        raise Invalid("the recipe wrote a step whose name is none: convert with another recipe")
    names = {step: f"{name}_{step}", "model": f"{name}_model", "ensemble": name}
    return [_model(target / suffix, own, name) for suffix, own in names.items()]


def _model(folder: Path, own: str, name: str) -> ConvertedModel:
    # Nobody trusts the program that wrote the folder: a link in it could lead to any file of this machine.
    plain = folder.is_dir() and not folder.is_symlink()
    files = (
        {path.name: path for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()}
        if plain
        else {}
    )
    config = files.pop(CONFIG_FILE, None)
    beside = {LABELS: files.pop(LABELS)} if LABELS in files else {}
    return ConvertedModel(own, config.read_text().replace(PLACEHOLDER, name) if config else "", files, beside)
