"""Previews going back to a release: the changes, and whether it is possible. The service checks again when it goes back."""

from dataclasses import dataclass

from dashboard.models import Model, Release
from dashboard.releases.selectors import current_document, missing_versions, newest_release, same_content
from dashboard.releases.services import changed_by_hand
from repository.config.document import Document
from repository.config.lines import unified


@dataclass(frozen=True, slots=True)
class GoingBack:
    """The effects of going back to `release`.

    refusals: the reasons why it is impossible, as sentences without a full stop; [] if it is possible. last: the number of the
    release's last text, which is used again. pinned: whether that text must name its versions explicitly. diff: a unified diff
    of the texts. effect: how a server applies the change (repository.config.reload_rule.Effect).
    """

    release: Release
    refusals: list[str]
    versions_now: list[int]
    versions_then: list[int]
    aliases_now: dict[str, int]
    aliases_then: dict[str, int]
    last: int
    pinned: bool
    document: Document
    diff: str
    effect: str

    @property
    def works(self) -> bool:
        return not self.refusals


def going_back(model: Model, release: Release) -> GoingBack:
    """Return the effects of going back to an earlier release of a model, and the reasons if it is impossible."""
    newest, refusals = newest_release(model), _refusals(model, release)
    now = current_document(model)
    last = _last_text(release)
    then = last.document if refusals else document_to_return(model, release)
    return GoingBack(
        release=release,
        refusals=refusals,
        versions_now=newest.versions if newest else [],
        versions_then=release.versions,
        aliases_now=newest.aliases if newest else {},
        aliases_then=release.aliases,
        last=last.number,
        pinned=not refusals and then != last.document.without_traffic(),
        document=then,
        diff=unified(now.text, then.text, old_name="now", new_name=f"release {release.number}"),
        effect=then.effect_after(now),
    )


def document_to_return(model: Model, release: Release) -> Document:
    """Return the configuration with which a release serves its versions again, whatever versions were published since.

    If the policy "latest" selects another version now, the document names the versions. The traffic policy of a rollout is left
    out: its stable version answers all requests. If the release has several texts, the last one is used.
    """
    document, there = _last_text(release).document.without_traffic(), model.published_numbers()
    return document if document.versions(there) == release.versions else document.pinned(release.versions, there)


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
    """Return the reasons why a server would refuse the release's text now, because rules may have been added since."""
    document = _last_text(release).document
    if document.mistake is not None:
        return [f"its configuration is not valid: {document.mistake.message}"]
    found = document.problems(model.name)
    return [f"its configuration is not valid: {problem.field}: {problem.message}" for problem in found]
