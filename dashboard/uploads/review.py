"""What a person looks at before publishing: the text, what became of the configuration meanwhile, and which rights it takes."""

from dataclasses import dataclass, field

from dashboard.access.authorisation import Right
from dashboard.configuration.needs import Need, publication_needs
from dashboard.models import ConfigRevision, Model, Upload
from dashboard.shared.choices import UploadState
from dashboard.uploads.publication import text_by_default
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
    now = current.number if current else 0
    last = upload.publication
    if text is None and last.get("config_text") is not None:
        text, base_revision = last["config_text"], last.get("base_revision")
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
