"""Previews going back to a release: the changes, and whether it can work. The service asks again when it goes back."""

from dataclasses import dataclass

from dashboard.models import Model, Release
from dashboard.releases.selectors import current_document, missing_versions, newest_release, same_content
from dashboard.releases.services import changed_by_hand
from repository.config.document import Document
from repository.config.lines import unified


@dataclass(frozen=True, slots=True)
class GoingBack:
    """The changes of going back to `release`.

    refusals: why it cannot work, as sentences without a full stop; [] where it can. last: the number of its last text, which
    comes back. pinned: whether that text has to name its versions. diff: of the texts, unified. effect: how a server takes it
    (repository.config.reload_rule.Effect).
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
    """Return what going back to an earlier release of a model would change, and why it cannot work."""
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
    """Return the configuration by which a release serves its versions again, whatever versions came since.

    Where "the latest" selects another version now, the document names the versions. The traffic policy of a rollout does not
    come back: its stable version answers all. Of several texts of the release the last is taken, which may have more settings
    for versions that it does not serve.
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
    """Return why a server of today would refuse its text, because rules may have been added since."""
    document = _last_text(release).document
    if document.mistake is not None:
        return [f"its configuration is not valid: {document.mistake.message}"]
    found = document.problems(model.name)
    return [f"its configuration is not valid: {problem.field}: {problem.message}" for problem in found]
