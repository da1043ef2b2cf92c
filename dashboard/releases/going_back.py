"""What going back to a release would change, and whether it can work: shown before, and asked again when it is done."""

from dataclasses import dataclass

from dashboard.models import Model, Release
from dashboard.releases.selectors import current_text, missing_versions, newest_release, same_content
from dashboard.releases.services import changed_by_hand
from dashboard.releases.texts import chosen_versions, pinned_text, without_traffic
from repository.config import model_config, reload_rule, validation
from repository.config.lines import unified
from repository.config.release_stamp import unstamped
from repository.core.errors import InvalidConfig


@dataclass(frozen=True, slots=True)
class GoingBack:
    """What going back to `release` would change of what is wanted now.

    refusals: why it cannot work, as sentences without a full stop; [] where it can. last: the number of its last text, which
    comes back. pinned: whether that has to name the versions that it served. diff: of the texts, unified. effect: what a server
    does for it (repository.config.reload_rule.Effect).
    """

    release: Release
    refusals: list[str]
    versions_now: list[int]
    versions_then: list[int]
    aliases_now: dict[str, int]
    aliases_then: dict[str, int]
    last: int
    pinned: bool
    text: str
    diff: str
    effect: str

    @property
    def works(self) -> bool:
        return not self.refusals


def going_back(model: Model, release: Release) -> GoingBack:
    """Return what going back to an earlier release of a model would change, and why it cannot work."""
    newest, refusals = newest_release(model), _refusals(model, release)
    now = current_text(model)
    last = _last_text(release)
    text = unstamped(last.text) if refusals else text_to_return(model, release)
    return GoingBack(
        release=release,
        refusals=refusals,
        versions_now=newest.versions if newest else [],
        versions_then=release.versions,
        aliases_now=newest.aliases if newest else {},
        aliases_then=release.aliases,
        last=last.number,
        pinned=not refusals and text != without_traffic(unstamped(last.text)),
        text=text,
        diff=unified(now, text, old_name="now", new_name=f"release {release.number}"),
        effect=_effect(now, text),
    )


def text_to_return(model: Model, release: Release) -> str:
    """Return the text with which a release serves again what it served, whatever versions came since.

    "The latest" may mean another version now than it meant then: where it does, the text names those of then. Shares of the
    requests, which a rollout gave, do not come back: its stable version answers all. Of several texts of the release it is the
    last, which may say more of versions that it does not serve.
    """
    text = without_traffic(unstamped(_last_text(release).text))
    return text if chosen_versions(model, text) == release.versions else pinned_text(model, text, release.versions)


def _last_text(release: Release) -> Release:
    return release.texts.first() or release


def _refusals(model: Model, release: Release) -> list[str]:
    newest = newest_release(model)
    if newest is not None and same_content(newest, release):
        return ["it is what is wanted already"]
    if not release.begun.spans.exists():
        return ["it was never live; make its version live, or edit the configuration"]
    by_hand = changed_by_hand(model)
    return [*missing_versions(release), *_mistakes(model, release), *([by_hand] if by_hand else [])]


def _mistakes(model: Model, release: Release) -> list[str]:
    """Return what a server of now would refuse about its text: rules may have come since."""
    try:
        config = model_config.parse(_last_text(release).text)
    except InvalidConfig as error:
        return [f"its configuration is not valid: {error.message}"]
    return [
        f"its configuration is not valid: {found.field}: {found.message}"
        for found in validation.validate(config, name=model.name, complete=False)
    ]


def _effect(now: str, then: str) -> str:
    try:
        return reload_rule.effect(model_config.parse(now), model_config.parse(then))
    except InvalidConfig:
        return "reload"
