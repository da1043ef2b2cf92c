"""Decides which rights a publication or a change of a configuration needs, and why. Services and their pages ask here.

A change of the served versions, or of a configuration, needs the right to operate. A change that adds code that would run
(repository.files.code_execution) needs the right to upload code.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dashboard.access.authorisation import Right
from dashboard.models import Release, Upload, Version
from dashboard.releases.storage import managed_repository
from dashboard.shared.exceptions import Forbidden
from repository.config.document import Document
from repository.core.layout import OVERLAY_FILE
from repository.files import code_execution
from repository.files.code_execution import Contents, Finding

_TOLD = 3  # the most reasons that one refusal names
_NEXT = {
    Right.OPERATE: "Leave that out, or ask somebody who may",
    Right.UPLOAD_CODE: "Leave that out, or ask an administrator",
}


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a change takes. sentence: the file or field that needs it, without a full stop."""

    right: Right
    sentence: str


def unmet(needs: Iterable[Need], granted: Iterable[Right]) -> list[Need]:
    """Return the needs whose right is not granted."""
    held = set(granted)
    return [need for need in needs if need.right not in held]


def refuse_unmet(needs: Iterable[Need], granted: Iterable[Right]) -> None:
    """Raise Forbidden, with the reasons, for a right that is missing."""
    missing = unmet(needs, granted)
    if missing:
        raise Forbidden(refusal(missing))


def refusal(missing: Sequence[Need]) -> str:
    """Return one sentence with the right of the first need, and the reasons why it is needed."""
    right = missing[0].right
    reasons = [need.sentence for need in missing if need.right is right]
    more = f"; and {len(reasons) - _TOLD} more" if len(reasons) > _TOLD else ""
    return f"this needs the permission to {right.value}: {'; '.join(reasons[:_TOLD])}{more}. {_NEXT[right]}"


# -- a configuration ---------------------------------------------------------------------------------------------------
def config_needs(*, model_name: str, current: Document, document: Document) -> list[Need]:
    """Return the rights that replacing `current` by `document` needs, given the model's files in the repository."""
    there = contents(model_name)
    return code_needs(runs(document, there) - runs(current, there))


def runs(document: Document, there: Contents) -> frozenset[Finding]:
    """Return the code that a model runs under a configuration; nothing if the text has mistakes, because no server loads it."""
    return frozenset() if document.mistake else code_execution.runs(document.message, there)


def contents(model_name: str) -> Contents:
    """Return the files of a model in the repository; no files if it has no folder."""
    return code_execution.contents_of(managed_repository().model_dir(model_name))


def code_needs(findings: Iterable[Finding]) -> list[Need]:
    return [Need(Right.UPLOAD_CODE, finding.sentence) for finding in sorted(findings)]


def code_of_version(model_name: str, document: Document, number: int) -> list[str]:
    """Return the code that one version runs under a configuration, as sentences, which `restore_needs` compares later."""
    return sorted(finding.sentence for finding in _runs_for(number, document, contents(model_name)))


def restore_needs(*, version: Version, document: Document, folder: Path) -> list[Need]:
    """Return the rights that restoring a version from `folder` needs under the present configuration.

    Code that the version ran when it was published needs no right again.
    """
    name, number = version.model.name, version.number
    back = contents(name).with_version(number, folder, {})
    known = set(version.details.get("runs_code", ()))
    return code_needs(one for one in _runs_for(number, document, back) if one.sentence not in known)


def _runs_for(number: int, document: Document, there: Contents) -> frozenset[Finding]:
    return frozenset() if document.mistake else code_execution.runs_for(number, document.message, there)


# -- a version ---------------------------------------------------------------------------------------------------------
def publication_needs(
    *,
    upload: Upload,
    current: Release | None,
    document: Document,
    number: int,
    folder: Path,
    changes_service: bool,
) -> list[Need]:
    """Return the rights that publishing the files in `folder` as version `number` needs under a configuration.

    current: the model's newest release, None for a new model. changes_service: whether the publication loads the model or makes
    the version live.
    """
    name = upload.model_name
    before = contents(name)
    beside = beside_files(upload)
    after = before.with_version(number, folder, beside)
    now = current.document if current is not None else None
    needs = [] if now is None else list(_changes(name, now, document, number, folder, _new(before, beside)))
    if changes_service:
        needs.append(Need(Right.OPERATE, f"'{name}' is loaded or made live by it"))
    was = runs(now, before) if now is not None else frozenset()
    code = runs(document, after)
    arriving = _arriving(upload, document, number, folder, beside, code_runs=bool(code))
    needs += code_needs(code - was) + code_needs(arriving)
    if upload.proposal.get("executes_code", True):
        needs.append(Need(Right.UPLOAD_CODE, f"format {upload.proposal.get('format')} can run code"))
    return needs


def _changes(
    name: str, current: Document, document: Document, number: int, folder: Path, beside: Sequence[str]
) -> Iterable[Need]:
    """Yield the rights for the changes that a new version makes to an existing model."""
    if not document.same_text(current):
        yield Need(Right.OPERATE, f"it changes the configuration of '{name}'")
    if beside:
        yield Need(Right.OPERATE, f"it changes '{beside[0]}' next to the versions of '{name}', which all of them share")
    if (folder / OVERLAY_FILE).is_file():
        yield Need(Right.OPERATE, f"its {OVERLAY_FILE} changes the configuration of '{name}' for version {number}")


def _new(before: Contents, beside: dict[str, Path]) -> list[str]:
    """Return the names of files in the model's folder that are new or changed."""
    there = before.beside
    return [name for name, path in beside.items() if name not in there or there[name].read_bytes() != path.read_bytes()]


def _arriving(
    upload: Upload, document: Document, number: int, folder: Path, beside: dict[str, Path], *, code_runs: bool
) -> list[Finding]:
    if document.mistake:
        return []
    named: list[str] = upload.proposal.get("names", [])
    return code_execution.could_run(document.message, number, folder, beside, named, code_runs=code_runs)


def beside_files(upload: Upload) -> dict[str, Path]:
    """Return the upload's files that belong in the model's folder, next to the folders of versions, by name."""
    return {name: upload.folder / path for name, path in upload.contents.get("model_files", {}).items()}
