"""config.pbtxt: preview, apply, return to an earlier text, and settle drift."""

from dataclasses import dataclass, field
from typing import Any

from dashboard.authorisation import Actor
from dashboard.models import ConfigRevision, Model


@dataclass(frozen=True, slots=True)
class Problem:
    """`field` is the form field's name ("" = the whole), `line` the line of the text (0 = unknown)."""

    message: str
    field: str = ""
    line: int = 0
    severity: str = "error"  # or "warning"


@dataclass(frozen=True, slots=True)
class ConfigPreview:
    """What a text, or form fields, would be as a configuration, and what applying it would do."""

    text: str
    fields: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)
    diff: str = ""  # unified, against the current text
    changed_fields: list[str] = field(default_factory=list)
    dropped_comments: list[str] = field(default_factory=list)
    effect: str = "none"  # none | in_place | reload

    @property
    def valid(self) -> bool:
        return not any(problem.severity == "error" for problem in self.problems)


def config_preview(
    *, model_name: str, base: str = "", text: str | None = None, fields: dict[str, Any] | None = None
) -> ConfigPreview:
    """From a text, or from form fields laid over `base`. Never raises for a bad configuration: see `problems`."""
    raise NotImplementedError


def config_apply(*, model: Model, text: str, actor: Actor, summary: str = "") -> ConfigRevision:
    """Validates, writes config.pbtxt atomically, keeps the revision. Invalid carries the problems."""
    raise NotImplementedError


def config_revert(*, revision: ConfigRevision, actor: Actor) -> ConfigRevision:
    """Applies an earlier text as a new revision."""
    raise NotImplementedError


def drift_adopt(*, model: Model, actor: Actor) -> ConfigRevision:
    """Takes the text that somebody wrote on disk as the new revision."""
    raise NotImplementedError


def drift_overwrite(*, model: Model, actor: Actor) -> ConfigRevision:
    """Writes the current revision over what is on disk."""
    raise NotImplementedError
