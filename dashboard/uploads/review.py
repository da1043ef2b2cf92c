"""What config.pbtxt becomes when an upload is published, and which rights that takes: shown to a person before, decided when
publishing is asked for, and decided again when the files are ready, for the model may have changed meanwhile.
"""

from dataclasses import dataclass, field
from pathlib import Path

from dashboard.access.authorisation import Right
from dashboard.catalog.releases import chosen_versions
from dashboard.catalog.selectors import current_text
from dashboard.configuration.needs import Need, publication_needs, refuse_unmet
from dashboard.configuration.services import published_numbers, text_check
from dashboard.models import ConfigRevision, Model, Upload
from dashboard.models.upload_json import PublishRequest
from dashboard.shared.choices import DesiredState, UploadState
from dashboard.shared.exceptions import Conflict
from repository.config import edit as config_edit
from repository.config import model_config, version_policy
from repository.config import text as config_text


@dataclass(frozen=True, slots=True)
class Review:
    """`meanwhile` is the configuration that came after `text` was made, with its difference; base_revision is that of now."""

    text: str
    base_revision: int
    needs: list[Need] = field(default_factory=list)  # of publishing alone, without loading
    meanwhile: ConfigRevision | None = None
    meanwhile_diff: str = ""
    replaced: bool = False  # the text is that configuration's: nothing in it was the person's own

    @property
    def code(self) -> list[str]:
        """What of it runs code, or can, in sentences."""
        return [need.sentence for need in self.needs if need.right is Right.UPLOAD_CODE]


def upload_review(*, upload: Upload, text: str | None = None, base_revision: int | None = None) -> Review:
    """Of an inspected upload. text: as typed, from base_revision; by default as it was asked for last, or is proposed."""
    model = Model.objects.filter(name=upload.model_name).first()
    current = model.revisions.first() if model else None
    now = number_of(current)
    last = upload.last_publication
    if text is None and last is not None and last.request.config_text is not None:
        text, base_revision = last.request.config_text, last.request.base_revision
    base = upload.proposal.get("base_revision", now) if base_revision is None else base_revision
    before = model.revisions.filter(number=base).first() if model and base else None
    came = current if current is not None and base != now else None
    untouched = came is not None and before is not None and text == before.text
    shown = text_by_default(upload, current) if text is None or untouched else text
    return Review(
        text=shown,
        base_revision=now,
        needs=_needs(upload, model, current, shown),
        meanwhile=came,
        meanwhile_diff=config_text.diff(before.text if before else "", came.text) if came else "",
        replaced=came is not None and shown == came.text,
    )


def decide_text(
    *, upload: Upload, model: Model, request: PublishRequest, number: int, folder: Path, since: str = ""
) -> str:
    """What config.pbtxt becomes, by what the model has now; `model` is locked.

    folder: where the files of the version lie. since: from when on another configuration is refused, in words; by default
    since the text was made.
    Conflict where the text was made from another configuration; Forbidden where it takes a right that is missing.
    """
    current = model.revisions.first()
    text = request.config_text
    if text is None:
        text = text_by_default(upload, current)
        text_check(text=text, model_name=upload.model_name)
    if request.strict or current is None or text != current.text:
        _refuse_outdated(upload.model_name, number_of(current), request.base_revision, since)
    final = _with_policy(model, text, number, request)
    loaded = request.make_live or request.load or model.desired_state == DesiredState.LOADED
    needs = publication_needs(
        upload=upload,
        current=current,
        text=text,
        number=number,
        folder=folder,
        changes_service=request.load or (loaded and number in chosen_versions(model, final, also=[number])),
    )
    refuse_unmet(needs, [Right[name] for name in request.rights])
    return final


def text_by_default(upload: Upload, current: ConfigRevision | None) -> str:
    """The configuration that the upload brings; else the one that the model has; else what inspection proposes."""
    if current is None or upload.proposal.get("config_source") == "upload":
        return str(upload.proposal.get("config", ""))
    return current.text


def number_of(revision: ConfigRevision | None) -> int:
    """The number of a configuration; 0 for none."""
    return revision.number if revision else 0


def _refuse_outdated(name: str, now: int, base: int | None, since: str) -> None:
    if base is None or base == now:
        return
    when = since or f"since this was made from {base or 'none'}"
    raise Conflict(
        f"the configuration of '{name}' was changed {when}, to "
        f"configuration {now}; look at it again, then publish once more"
    )


def _with_policy(model: Model, text: str, number: int, request: PublishRequest) -> str:
    """The reviewed text, with the version policy that what was asked for needs.

    A version that nobody made live must not become so at the next restart: then the policy names those that are.
    """
    config = model_config.parse(text)
    after = version_policy.select(config, [*published_numbers(model), number])
    if request.make_live:
        wanted = [number]
    elif request.load or model.desired_state == DesiredState.UNLOADED or number not in after:
        return text
    else:
        wanted = chosen_versions(model, current_text(model))
    if wanted and after != wanted:
        version_policy.set_specific(config, wanted)
        return config_edit.apply(text, config)
    return text


def _needs(upload: Upload, model: Model | None, current: ConfigRevision | None, text: str) -> list[Need]:
    if upload.state != UploadState.INSPECTED:
        return []
    return publication_needs(
        upload=upload,
        current=current,
        text=text,
        number=model.last_number + 1 if model else 1,
        folder=upload.folder / "version",
        changes_service=False,
    )
