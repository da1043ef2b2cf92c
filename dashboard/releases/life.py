"""The life of a release, as servers report it: the state machine, and the only functions that write its facts.

      release_make
           |
           v     a newer one is made before it served
        WANTED ------------------------------------------> SKIPPED
         |  ^
   began |  | the server is lost
         v  |
       CHECKING --- failed ---> FAILED --- began: a person orders a retry -------> CHECKING
         |   ^                    ^  |
         |   |                    |  | passed: a retry by `watch` succeeded; a release that serves is SERVING
  passed |   | began: the server  | failed: its server came back, and could not load it again
  serves |   | came back          |
         v   |                    |
       SERVING -------------------+
         |
         | a newer one serves, or the model is unloaded
         v
       SERVED   of the newest release, while the model is not loaded: IDLE

A further text of a release changes nothing for clients, and shares the life of the release. Going back to a release makes
another release with the same text and versions. Acts of people do not change the state of a release: they make the next
release. Only the answers of servers change these facts.

Where an environment names the release that it wants, the newest one is HELD until a deployment brings it there.

    fact                     row                                        written because of
    wanted since             Release.created_at; the newest one,        release_make
                             while the model is to be loaded
    is being checked         ReleaseCheck RUNNING, with the steps       `watch` began a load; `loading` of the index rows
    passed                   ReleaseCheck PASSED, with the steps        the load's answer
    failed because           ReleaseCheck FAILED, with the steps        the load's answer, or the server's end meanwhile
    serves since             ReleaseSpan without an end                 `release` of the index rows, or what was applied last
    served from ... to ...   ReleaseSpan with an end                    the index rows, or that the server is lost

A SIGKILL of `watch` may leave a check at RUNNING. When `watch` watches the server again, `end_abandoned_checks` ends the check.
A span that is open then is ended or kept when the server first answers with its index.

A span records what `watch` saw. If two observations of a server are so far apart that the server may have stopped in between,
the span ends at the first one and another span begins at the second. This happens if `watch` was down, the machine slept, or
its clock was set.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import transaction
from django.db.models import Value
from django.db.models.functions import Greatest
from django.utils import timezone

from dashboard.models import Release, ReleaseCheck, ReleaseSpan, Server
from dashboard.models.release import CheckStep
from dashboard.shared.choices import CheckState, ReleaseState

# A release that serves at two observations, at most this far apart, also served in between.
UNSEEN = timedelta(seconds=10)

_BROKEN_OFF = "The check was broken off."


class Facts(NamedTuple):
    """The facts of one release on one server. newest: whether it is the newest. loaded: whether the model should be loaded.
    wanted: whether the server should serve it."""

    newest: bool
    loaded: bool
    wanted: bool
    serves: bool
    served: bool
    check: ReleaseCheck | None


def state_of(facts: Facts) -> ReleaseState:
    """Return the state of a release, which follows from its facts alone."""
    check = facts.check.state if facts.check else ""
    if facts.serves:
        return ReleaseState.SERVING
    if check == CheckState.RUNNING:
        return ReleaseState.CHECKING
    if facts.wanted:
        return ReleaseState.FAILED if check == CheckState.FAILED else ReleaseState.WANTED
    if facts.newest and not facts.loaded and (facts.served or check != CheckState.FAILED):
        return ReleaseState.IDLE
    if facts.served:
        return ReleaseState.SERVED
    if check == CheckState.FAILED:
        return ReleaseState.FAILED
    return ReleaseState.HELD if facts.newest else ReleaseState.SKIPPED


# -- checks ------------------------------------------------------------------------------------------------------------
def began(*, release: Release, server: Server, again: bool = False) -> ReleaseCheck | None:
    """Record that a load of the release begins. Return the check of an earlier load, for `not_begun`.

    again: whether `watch` repeats a failed load; then the release stays failed until it passes.
    """
    release = release.begun
    before = ReleaseCheck.objects.filter(release=release, server=server).first()
    if again and before is not None and before.state == CheckState.FAILED:
        return before
    values = {"state": CheckState.RUNNING, "steps": [], "error": "", "started_at": timezone.now(), "ended_at": None}
    ReleaseCheck.objects.update_or_create(release=release, server=server, defaults=values)
    return before


def not_begun(*, release: Release, server: Server, before: ReleaseCheck | None) -> None:
    """Record that the load did not begin after all, because the server was not reached."""
    if before is not None:
        before.save()
    else:
        ReleaseCheck.objects.filter(release=release.begun, server=server).delete()


def stepped(*, release: Release, server: Server, steps: Sequence[CheckStep]) -> None:
    """Record how far the load of the release has come."""
    running = ReleaseCheck.objects.filter(release=release.begun, server=server, state=CheckState.RUNNING)
    running.update(steps=list(steps))


def passed(*, release: Release, server: Server, steps: Sequence[CheckStep] = ()) -> None:
    """Record that the server has loaded the release: all its checks passed."""
    _end(release, server, CheckState.PASSED, steps, "", attempts=0)


def failed(*, release: Release, server: Server, error: str, steps: Sequence[CheckStep] = ()) -> None:
    """Record that the server failed to load the release. The release before it continues to serve."""
    known = ReleaseCheck.objects.filter(release=release.begun, server=server)
    before = known.values_list("attempts", flat=True).first()
    _end(release, server, CheckState.FAILED, steps, error, attempts=(before or 0) + 1)


def end_abandoned_checks(*, server: Server) -> None:
    """End the checks of an earlier `watch` whose results never arrived. A release that has served counts as passed."""
    running, now = ReleaseCheck.objects.filter(server=server, state=CheckState.RUNNING), timezone.now()
    served = ReleaseSpan.objects.filter(server=server).values("release")
    running.filter(release__in=served).update(state=CheckState.PASSED, ended_at=now)
    running.update(state=CheckState.FAILED, error=_BROKEN_OFF, ended_at=now)


def _end(
    release: Release, server: Server, state: CheckState, steps: Sequence[CheckStep], error: str, *, attempts: int
) -> None:
    values = {
        "state": state,
        "steps": list(steps),
        "error": error,
        "attempts": attempts,
        "ended_at": timezone.now(),
    }
    ReleaseCheck.objects.update_or_create(release=release.begun, server=server, defaults=values)


# -- spans -------------------------------------------------------------------------------------------------------------
def serving(*, server: Server, releases: Mapping[int, int]) -> None:
    """Record all releases that the server serves now: release id by model id. The spans of other releases end."""
    now = timezone.now()
    with transaction.atomic():
        rows = ReleaseSpan.objects.select_for_update().filter(server=server, ended_at=None)
        open_spans = {row.model_id: row for row in rows}
        known = {model: row.release_id for model, row in open_spans.items() if releases.get(model) == row.release_id}
        others = _find_begun({model: release for model, release in releases.items() if model not in known})
        serve = {**known, **others}
        ended = [row.pk for model, row in open_spans.items() if serve.get(model) != row.release_id]
        ReleaseSpan.objects.filter(pk__in=ended).update(ended_at=now)
        ReleaseSpan.objects.bulk_create(
            ReleaseSpan(release_id=release, model_id=model, server=server, started_at=now)
            for model, release in others.items()
            if model not in open_spans or open_spans[model].release_id != release
        )


def _find_begun(serving: Mapping[int, int]) -> dict[int, int]:
    """Return the releases that these rows begin or continue, without those that were deleted meanwhile with their models."""
    rows = Release.objects.filter(pk__in=serving.values()).values_list("pk", "continues")
    begun = {pk: continues or pk for pk, continues in rows}
    return {model: begun[release] for model, release in serving.items() if release in begun}


def lost(*, server: Server, at: datetime) -> None:
    """End all spans of a server that does not answer or was not watched. at: the time when it was last seen."""
    open_spans = ReleaseSpan.objects.filter(server=server, ended_at=None)
    open_spans.update(ended_at=Greatest("started_at", Value(at)))
