"""Which rights publishing a version, or changing a configuration, takes, and why; asked by the services and by their pages.

A change of what is served or of a configuration takes the right to operate, however it arrives. What would run code that
does not run now, by repository.files.code_execution, takes the right to upload code.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboard.access.authorisation import Actor, Right
from dashboard.catalog.storage import managed_repository
from dashboard.models import ConfigRevision, Upload, Version
from dashboard.shared.exceptions import Forbidden
from repository.config import model_config
from repository.core.errors import InvalidConfig
from repository.core.layout import OVERLAY_FILE
from repository.files import code_execution
from repository.files.code_execution import Contents, Finding

_TOLD = 3  # reasons in one refusal
_NEXT = {
    Right.OPERATE: "Leave that out, or ask somebody who may",
    Right.UPLOAD_CODE: "Leave that out, or ask an administrator",
}


@dataclass(frozen=True, slots=True)
class Need:
    """`sentence`: because of which file or field; without a full stop."""

    right: Right
    sentence: str


def unmet(needs: Iterable[Need], granted: Iterable[Right]) -> list[Need]:
    held = set(granted)
    return [need for need in needs if need.right not in held]


def rights_of(actor: Actor) -> list[Right]:
    return [right for right in Right if actor.may(right)]


def refuse_unmet(needs: Iterable[Need], granted: Iterable[Right]) -> None:
    """Forbidden, with the right that is missing and what it is needed for."""
    missing = unmet(needs, granted)
    if missing:
        raise Forbidden(refusal(missing))


def refusal(missing: Sequence[Need]) -> str:
    """One sentence for what is missing: the right of the first need, and the reasons for it."""
    right = missing[0].right
    reasons = [need.sentence for need in missing if need.right is right]
    more = f"; and {len(reasons) - _TOLD} more" if len(reasons) > _TOLD else ""
    return f"this needs the permission to {right.value}: {'; '.join(reasons[:_TOLD])}{more}. {_NEXT[right]}"


# -- a configuration ---------------------------------------------------------------------------------------------------
def config_needs(*, model_name: str, current: str, text: str) -> list[Need]:
    """Of a text that takes the place of `current`, with the files as they lie in the repository."""
    there = contents(model_name)
    return code_needs(runs(text, there) - runs(current, there))


def runs(text: str, there: Contents) -> frozenset[Finding]:
    """A text that does not parse runs nothing: no server loads it."""
    try:
        return code_execution.runs(model_config.parse(text), there)
    except InvalidConfig:
        return frozenset()


def contents(model_name: str) -> Contents:
    repository = managed_repository()
    return (
        code_execution.contents_of(repository.model_dir(model_name)) if repository.has_model(model_name) else Contents()
    )


def code_needs(findings: Iterable[Finding]) -> list[Need]:
    return [Need(Right.UPLOAD_CODE, finding.sentence) for finding in sorted(findings)]


def code_of_version(model_name: str, text: str, number: int) -> list[str]:
    """What one version runs as code under a text, in sentences: kept with it, for when it comes back from the archive."""
    there = contents(model_name)
    return sorted(finding.sentence for finding in runs(text, there) - runs(text, there.without(number)))


def restore_needs(*, version: Version, text: str, folder: Path) -> list[Need]:
    """Of bringing back a version, whose files lie in `folder`, under the configuration of now.

    What it ran when it was published needs nothing new.
    """
    name, number = version.model.name, version.number
    there = contents(name).without(number)
    back = there.with_version(number, folder, {})
    known = set(version.details.get("runs_code", ()))
    return code_needs(one for one in runs(text, back) - runs(text, there) if one.sentence not in known)


# -- a version ---------------------------------------------------------------------------------------------------------
def publication_needs(
    *,
    upload: Upload,
    current: ConfigRevision | None,
    text: str,
    number: int,
    folder: Path,
    changes_service: bool,
) -> list[Need]:
    """Of publishing the files in `folder` as version `number` under `text`, where the model has `current` now."""
    name = upload.model_name
    before = contents(name)
    beside = beside_files(upload)
    after = before.with_version(number, folder, beside)
    needs = [] if current is None else list(_changes(name, current.text, text, number, folder, _new(before, beside)))
    if changes_service:
        needs.append(Need(Right.OPERATE, f"'{name}' is loaded or made live by it"))
    was = runs(current.text, before) if current is not None else frozenset()
    needs += code_needs(runs(text, after) - was) + code_needs(_arriving(upload, text, number, folder, beside))
    if upload.proposal.get("executes_code", True):
        needs.append(Need(Right.UPLOAD_CODE, f"format {upload.proposal.get('format')} can run code"))
    return needs


def _changes(name: str, current: str, text: str, number: int, folder: Path, beside: Sequence[str]) -> Iterable[Need]:
    """What a new version changes of a model that is there."""
    if text != current:
        yield Need(Right.OPERATE, f"it changes the configuration of '{name}'")
    if beside:
        yield Need(Right.OPERATE, f"it changes '{beside[0]}' beside the versions of '{name}', which all of them share")
    if (folder / OVERLAY_FILE).is_file():
        yield Need(Right.OPERATE, f"its {OVERLAY_FILE} changes the configuration of '{name}' for version {number}")


def _new(before: Contents, beside: dict[str, Path]) -> list[str]:
    """The files beside the versions that are not there already with the same content."""
    there = before.beside
    return [name for name, path in beside.items() if name not in there or there[name].read_bytes() != path.read_bytes()]


def _arriving(upload: Upload, text: str, number: int, folder: Path, beside: dict[str, Path]) -> list[Finding]:
    try:
        config = model_config.parse(text)
    except InvalidConfig:
        return []
    named: Any = upload.proposal.get("names", [])
    return code_execution.could_run(config, number, folder, beside, named)


def beside_files(upload: Upload) -> dict[str, Path]:
    """Name beside the versions -> the file of the upload that is to lie there."""
    return {name: upload.folder / path for name, path in upload.arranged.model_files.items()}
