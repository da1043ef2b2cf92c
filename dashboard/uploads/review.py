"""What config.pbtxt becomes when an upload is published, and which rights that takes: shown to a person before, decided when
publishing is asked for, and decided again when the files are ready, for the model may have changed meanwhile.
"""

from dataclasses import dataclass, field
from pathlib import Path

from dashboard.access.authorisation import Right
from dashboard.configuration.model_files import Arriving, file_of_upload, served_misfits
from dashboard.configuration.needs import Need, publication_needs, refuse_unmet
from dashboard.configuration.services import refuse_outdated, text_check
from dashboard.models import Model, Release, Upload
from dashboard.models.upload_json import PublishRequest
from dashboard.releases.rollout_rules import traffic_kept
from dashboard.releases.selectors import current_text, newest_release, wanted_versions
from dashboard.releases.texts import (
    aliases_in,
    chosen_versions,
    live_text,
    pinned_text,
    published_numbers,
    without_traffic,
)
from dashboard.shared.choices import DesiredState, UploadState
from dashboard.shared.exceptions import Outdated
from repository.config import model_config, version_policy
from repository.config.lines import unified
from repository.config.release_stamp import same_text, unstamped


@dataclass(frozen=True, slots=True)
class Review:
    """`meanwhile` is the release that came with another text since `text` was made; base_release is that of now."""

    text: str
    base_release: int
    needs: list[Need] = field(default_factory=list)  # of publishing alone, without loading
    meanwhile: Release | None = None
    meanwhile_diff: str = ""
    replaced: bool = False  # the text is that release's: nothing in it was the person's own

    @property
    def code(self) -> list[str]:
        """What of it runs code, or can, in sentences."""
        return [need.sentence for need in self.needs if need.right is Right.UPLOAD_CODE]


def upload_review(*, upload: Upload, text: str | None = None, base_release: int | None = None) -> Review:
    """Of an inspected upload. text: as typed, from base_release; by default as it was asked for last, or is proposed."""
    model = Model.objects.filter(name=upload.model_name).first()
    current = newest_release(model) if model else None
    now = number_of(current)
    last = upload.last_publication
    if text is None and last is not None and last.request.config_text is not None:
        text, base_release = last.request.config_text, last.request.base_release
    base = upload.proposal.get("base_release", now) if base_release is None else base_release
    before = model.releases.filter(number=base).first() if model and base else None
    base_text, now_text = _plain(before), _plain(current)
    came = current if base != now and not (before and same_text(base_text, now_text)) else None
    untouched = came is not None and before is not None and same_text(text or "", base_text)
    shown = text_by_default(upload, current) if text is None or untouched else text
    return Review(
        text=shown,
        base_release=now,
        needs=_needs(upload, model, current, shown),
        meanwhile=came,
        meanwhile_diff=unified(base_text, now_text) if came else "",
        replaced=came is not None and same_text(shown, now_text),
    )


def decide_text(
    *, upload: Upload, model: Model, request: PublishRequest, number: int, folder: Path, since: str = ""
) -> str:
    """What config.pbtxt becomes, by what the model has now; `model` is locked.

    folder: where the files of the version lie. since: from when on another configuration is refused, in words; by default
    since the text was made.
    Conflict where the text was made from another configuration; Forbidden where it takes a right that is missing.
    """
    current = newest_release(model)
    text = request.config_text
    if text is None:
        text = text_by_default(upload, current)
        text_check(text=text, model_name=upload.model_name)
    text = unstamped(text)
    if request.strict or current is None or not same_text(text, _plain(current)):
        _refuse_outdated(model, request.base_release, since)
    arriving = Arriving(number, file_of_upload(upload))
    final = _final_text(model, text, arriving, request)
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
    text_check(text=final, model=model, arriving=arriving)
    return final


def arriving_version(upload: Upload) -> Arriving:
    """The version that an inspected upload would become now."""
    model = Model.objects.filter(name=upload.model_name).first()
    return Arriving(model.last_number + 1 if model else 1, file_of_upload(upload))


def _final_text(model: Model, text: str, arriving: Arriving, request: PublishRequest) -> str:
    """The reviewed text with the policy that it needs.

    Where it is only published, what serves keeps its configuration, and names its versions: the text is kept for the new one
    alone, which has it when it is made live. So is one that fits the new version and not those which are served.
    """
    if not (request.make_live or request.load) and (serving := wanted_versions(model)):
        return pinned_text(model, current_text(model), serving, also=[arriving.number])
    final = _with_policy(model, text, arriving.number, request)
    config = model_config.parse(final)
    there = published_numbers(model)
    waits = arriving.number not in version_policy.select(config, [*there, arriving.number])
    if waits and any(misfit.certain for misfit in served_misfits(model, config, there)):
        return pinned_text(model, current_text(model), wanted_versions(model), also=[arriving.number])
    return final


def text_by_default(upload: Upload, current: Release | None) -> str:
    """The configuration that the upload brings; else the one that the model has; else what inspection proposes."""
    if current is None or upload.proposal.get("config_source") == "upload":
        return str(upload.proposal.get("config", ""))
    return _plain(current)


def number_of(release: Release | None) -> int:
    """The number of a release; 0 for none."""
    return release.number if release else 0


def _plain(release: Release | None) -> str:
    return unstamped(release.text) if release else ""


def _refuse_outdated(model: Model, base: int | None, since: str) -> None:
    try:
        refuse_outdated(model=model, base_release=base)
    except Outdated as error:
        when = since or f"since this was made from {base or 'none'}"
        error.message = (
            f"the configuration of '{model.name}' was changed {when}, to release {error.current_release}; "
            "look at it again, then publish once more"
        )
        raise


def _with_policy(model: Model, text: str, number: int, request: PublishRequest) -> str:
    """The reviewed text, with the version policy that what was asked for needs.

    A version that nobody made live must not become so at the next restart: then the policy names those that are. Versions with
    a name go on to be served.
    """
    config = model_config.parse(text)
    after = version_policy.select(config, [*published_numbers(model), number])
    if request.make_live:
        return live_text(model, without_traffic(text), [number], also=[number])
    text = traffic_kept(model, current_text(model), text)
    if not request.load and model.desired_state != DesiredState.UNLOADED and number in after:
        after = wanted_versions(model) or after
        return pinned_text(model, text, after, also=[number])
    named = set(aliases_in(text).values())
    return text if named <= set(after) else live_text(model, text, after, also=[number])


def _needs(upload: Upload, model: Model | None, current: Release | None, text: str) -> list[Need]:
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
