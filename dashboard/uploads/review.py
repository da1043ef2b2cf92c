"""Decides the configuration with which an upload is published, and the rights that this needs.

It decides for the review page, when publishing is requested, and again when the files are ready, because the model may have
changed meanwhile.
"""

from dataclasses import dataclass, field
from pathlib import Path

from dashboard.access.authorisation import Right
from dashboard.configuration.model_files import Arriving, file_of_upload, served_misfits
from dashboard.configuration.needs import Need, publication_needs, refuse_unmet
from dashboard.configuration.services import document_check, refuse_outdated
from dashboard.models import Model, Release, Upload
from dashboard.models.upload_json import PublishRequest
from dashboard.releases.gates import refuse_unproved
from dashboard.releases.rollout_rules import traffic_kept
from dashboard.releases.selectors import newest_release, wanted_versions
from dashboard.shared.choices import DesiredState, UploadState
from dashboard.shared.exceptions import Outdated
from repository.config.document import NOTHING, Document
from repository.config.lines import unified


@dataclass(frozen=True, slots=True)
class Review:
    """The review of an upload. meanwhile: a newer release with another text. base_release: the number of the newest release."""

    document: Document
    base_release: int
    needs: list[Need] = field(default_factory=list)  # the needs of publishing without loading
    meanwhile: Release | None = None
    meanwhile_diff: str = ""
    replaced: bool = False  # whether `document` is that release's text, because the person had changed nothing

    @property
    def code(self) -> list[str]:
        """The parts that run code or can run it, as sentences."""
        return [need.sentence for need in self.needs if need.right is Right.UPLOAD_CODE]


def upload_review(*, upload: Upload, document: Document | None = None, base_release: int | None = None) -> Review:
    """Review an inspected upload.

    document: the text that a person made from `base_release`; by default the text of the last request, else the proposed one.
    """
    model = Model.objects.filter(name=upload.model_name).first()
    current = newest_release(model) if model else None
    now = number_of(current)
    last = upload.last_publication
    if document is None and last is not None and last.request.document is not None:
        document, base_release = last.request.document, last.request.base_release
    base = upload.proposal.get("base_release", now) if base_release is None else base_release
    before = model.releases.filter(number=base).first() if model and base else None
    then, present = _document(before), _document(current)
    came = current if base != now and not (before and then.same_text(present)) else None
    untouched = came is not None and before is not None and then.same_text(document or NOTHING)
    shown = document_by_default(upload, current) if document is None or untouched else document
    return Review(
        document=shown,
        base_release=now,
        needs=_needs(upload, model, current, shown),
        meanwhile=came,
        meanwhile_diff=unified(then.text, present.text) if came else "",
        replaced=came is not None and present.same_text(shown),
    )


def decide_document(
    *,
    upload: Upload,
    model: Model,
    current: Release | None,
    request: PublishRequest,
    number: int,
    folder: Path,
    since: str = "",
) -> Document:
    """Return the configuration to publish with, by the present state of the model, which is locked.

    current: the model's newest release. folder: the folder with the version's files. since: words that say since when another
    configuration is refused; by default since the text was made.
    Raises Conflict if the text was made from another configuration. Raises Forbidden if a right that the text needs is missing.
    """
    document = request.document
    if document is None:
        document = document_by_default(upload, current)
        document_check(document=document, model_name=upload.model_name)
    if current is not None and current.document == document:
        current.document = document  # so that the text is parsed and checked once
    if request.strict or current is None or not document.same_text(current.document):
        _refuse_outdated(model, current, request.base_release, since)
    arriving, there = Arriving(number, file_of_upload(upload)), [*model.published_numbers(), number]
    final = _final(model, current, document, arriving, there, request)
    loaded = request.make_live or request.load or model.desired_state == DesiredState.LOADED
    needs = publication_needs(
        upload=upload,
        current=current,
        document=document,
        number=number,
        folder=folder,
        changes_service=request.load or (loaded and number in final.versions(there)),
    )
    refuse_unmet(needs, [Right[name] for name in request.rights])
    document_check(document=final, model=model, arriving=arriving)
    if (model.budget or model.replay_gate) and loaded and final.answers(there) == number:
        refuse_unproved(model=model, number=number)
    return final


def arriving_version(upload: Upload) -> Arriving:
    """Return the version that an inspected upload would become now."""
    model = Model.objects.filter(name=upload.model_name).first()
    return Arriving(model.last_number + 1 if model else 1, file_of_upload(upload))


def _final(
    model: Model,
    current: Release | None,
    document: Document,
    arriving: Arriving,
    there: list[int],
    request: PublishRequest,
) -> Document:
    """Return the reviewed document with the version policy that the request needs.

    there: the published versions, and the arriving one.
    If the version is only published, the present configuration stays and names the served versions; the new version keeps the
    reviewed text until it is made live. The same happens if the text does not fit the files of the served versions.
    """
    now, serving = _document(current), wanted_versions(model)
    if not (request.make_live or request.load) and serving:
        return now.pinned(serving, there)
    final = _with_policy(model, now, document, arriving.number, serving, there, request)
    waits = arriving.number not in final.versions(there)
    if waits and any(misfit.certain for misfit in served_misfits(model, final, there[:-1])):
        return now.pinned(serving, there)
    return final


def document_by_default(upload: Upload, current: Release | None) -> Document:
    """Return the upload's own configuration, else the model's, else the inspection's proposal."""
    if current is None or upload.proposal.get("config_source") == "upload":
        return Document.read(str(upload.proposal.get("config", "")))
    return current.document


def number_of(release: Release | None) -> int:
    """Return the number of a release; 0 if there is none."""
    return release.number if release else 0


def _document(release: Release | None) -> Document:
    return release.document if release else NOTHING


def _refuse_outdated(model: Model, current: Release | None, base: int | None, since: str) -> None:
    if base == number_of(current):
        return
    try:
        refuse_outdated(model=model, base_release=base)
    except Outdated as error:
        when = since or f"since this was made from {base or 'none'}"
        error.message = (
            f"the configuration of '{model.name}' was changed {when}, to release {error.current_release}; "
            "look at it again, then publish once more"
        )
        raise


def _with_policy(
    model: Model,
    now: Document,
    document: Document,
    number: int,
    serving: list[int],
    there: list[int],
    request: PublishRequest,
) -> Document:
    """Return the reviewed document, with the version policy that the request needs.

    A version that nobody made live must not become live at the next restart, so the policy then names the live versions.
    Versions with an alias stay served.
    """
    if request.make_live:
        return document.without_traffic().live([number], there)
    after = document.versions(there)
    document = traffic_kept(model, now, document)
    if not request.load and model.desired_state != DesiredState.UNLOADED and number in after:
        return document.pinned(serving or after, there)
    return document if set(document.aliases.values()) <= set(after) else document.live(after, there)


def _needs(upload: Upload, model: Model | None, current: Release | None, document: Document) -> list[Need]:
    if upload.state != UploadState.INSPECTED:
        return []
    return publication_needs(
        upload=upload,
        current=current,
        document=document,
        number=model.last_number + 1 if model else 1,
        folder=upload.folder / "version",
        changes_service=False,
    )
