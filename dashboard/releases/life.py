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

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import Q, QuerySet, Value
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
class Begun(NamedTuple):
    """A load of a release that begins. again: whether `watch` repeats a failed load; then the release stays failed until it
    passes."""

    release: Release
    server: Server
    again: bool = False


class Passed(NamedTuple):
    """A load of a release that passed all its checks, with their steps."""

    release: Release
    server: Server
    steps: Sequence[CheckStep] = ()


def began(*, release: Release, server: Server, again: bool = False) -> ReleaseCheck | None:
    """Record that a load of the release begins. Return the check of an earlier load, for `not_begun`."""
    return all_began([Begun(release, server, again)])[0]


def all_began(loads: Sequence[Begun]) -> list[ReleaseCheck | None]:
    """Record together that several loads begin, as `began`."""
    keys = [(load.release.begun.pk, load.server.pk) for load in loads]
    rows = ReleaseCheck.objects.filter(release__in={key[0] for key in keys}, server__in={key[1] for key in keys})
    before = {(row.release_id, row.server_id): row for row in rows}
    stays = {key for key, load in zip(keys, loads, strict=True) if load.again and _has_failed(before.get(key))}
    _write(
        [_check(*key, CheckState.RUNNING, started_at=timezone.now()) for key in keys if key not in stays], "started_at"
    )
    return [before.get(key) for key in keys]


def _has_failed(check: ReleaseCheck | None) -> bool:
    return check is not None and check.state == CheckState.FAILED


def not_begun(*, release: Release, server: Server, before: ReleaseCheck | None) -> None:
    """Record that the load did not begin after all, because the server was not reached."""
    if before is not None:
        before.save()
    else:
        ReleaseCheck.objects.filter(release=release.begun, server=server).delete()


def stepped(*, release: Release, servers: Collection[Server], steps: Sequence[CheckStep]) -> None:
    """Record how far the load of the release has come on some servers."""
    running = ReleaseCheck.objects.filter(release=release.begun, server__in=servers, state=CheckState.RUNNING)
    running.update(steps=list(steps))


def passed(*, release: Release, server: Server, steps: Sequence[CheckStep] = ()) -> None:
    """Record that the server has loaded the release: all its checks passed."""
    all_passed([Passed(release, server, steps)])


def all_passed(loads: Sequence[Passed]) -> None:
    """Record together that several loads passed, as `passed`."""
    now = timezone.now()
    _write(
        [
            _check(load.release.begun.pk, load.server.pk, CheckState.PASSED, steps=list(load.steps), ended_at=now)
            for load in loads
        ],
        "attempts",
    )


def failed(*, release: Release, server: Server, error: str, steps: Sequence[CheckStep] = ()) -> None:
    """Record that the server failed to load the release. The release before it continues to serve."""
    known = ReleaseCheck.objects.filter(release=release.begun, server=server)
    attempts = (known.values_list("attempts", flat=True).first() or 0) + 1
    values = {"steps": list(steps), "error": error, "attempts": attempts, "ended_at": timezone.now()}
    _write([_check(release.begun.pk, server.pk, CheckState.FAILED, **values)], "attempts")


def end_abandoned_checks(*, server: Server) -> None:
    """End the checks of an earlier `watch` whose results never arrived. A release that has served counts as passed."""
    running, now = ReleaseCheck.objects.filter(server=server, state=CheckState.RUNNING), timezone.now()
    served = ReleaseSpan.objects.filter(server=server).values("release")
    running.filter(release__in=served).update(state=CheckState.PASSED, ended_at=now)
    running.update(state=CheckState.FAILED, error=_BROKEN_OFF, ended_at=now)


def _check(release: int, server: int, state: CheckState, **values: Any) -> ReleaseCheck:
    return ReleaseCheck(release_id=release, server_id=server, state=state, **values)


def _write(checks: Iterable[ReleaseCheck], *more: str) -> None:
    """Make these rows, or change those that are there. more: the fields that change beside the state, steps, error and end."""
    rows = {(one.release_id, one.server_id): one for one in checks}
    with transaction.atomic():
        ReleaseCheck.objects.bulk_create(
            rows.values(),
            update_conflicts=True,
            unique_fields=["release", "server"],
            update_fields=["state", "steps", "error", "ended_at", *more],
        )


# -- spans -------------------------------------------------------------------------------------------------------------
class Serving(NamedTuple):
    """The releases that a server serves now: release id by model id. models: the ids of the models that this is about, None
    for all; what is recorded of other models stays."""

    server: Server
    releases: Mapping[int, int]
    models: Collection[int] | None = None

    def about(self, model: int) -> bool:
        return self.models is None or model in self.models


def serving(*, server: Server, releases: Mapping[int, int]) -> None:
    """Record all releases that the server serves now: release id by model id. The spans of other releases end."""
    all_serving([Serving(server, releases)])


def all_serving(servers: Sequence[Serving]) -> None:
    """Record together what several servers serve, as `serving`."""
    now = timezone.now()
    with transaction.atomic():
        open_spans = {(row.server_id, row.model_id): row for row in open_spans_of(servers).select_for_update()}
        told = {(one.server.pk, model): release for one in servers for model, release in one.releases.items()}
        known = {key: pk for key, pk in told.items() if key in open_spans and open_spans[key].release_id == pk}
        begun = _find_begun({pk for key, pk in told.items() if key not in known})
        serve = known | {key: begun[pk] for key, pk in told.items() if key not in known and pk in begun}
        ended = [
            row.pk
            for one in servers
            for key, row in open_spans.items()
            if key[0] == one.server.pk and one.about(key[1]) and serve.get(key) != row.release_id
        ]
        ReleaseSpan.objects.filter(pk__in=ended).update(ended_at=now)
        ReleaseSpan.objects.bulk_create(
            ReleaseSpan(release_id=release, model_id=model, server_id=server, started_at=now)
            for (server, model), release in serve.items()
            if (server, model) not in open_spans or open_spans[server, model].release_id != release
        )


def open_spans_of(servers: Sequence[Serving]) -> QuerySet[ReleaseSpan]:
    """Return the open spans of these servers, of the models that this is about, and maybe a few others."""
    whole = Q(server__in=[one.server.pk for one in servers if one.models is None])
    parts = [one for one in servers if one.models is not None]
    some = Q(server__in=[one.server.pk for one in parts], model__in={pk for one in parts for pk in one.models or ()})
    return ReleaseSpan.objects.filter(whole | some, ended_at=None)


def _find_begun(releases: Collection[int]) -> dict[int, int]:
    """Return the releases that these begin or continue, without those that were deleted meanwhile with their models."""
    rows = Release.objects.filter(pk__in=releases).values_list("pk", "continues") if releases else ()
    return {pk: continues or pk for pk, continues in rows}


def lost(*, server: Server, at: datetime) -> None:
    """End all spans of a server that does not answer or was not watched. at: the time when it was last seen."""
    open_spans = ReleaseSpan.objects.filter(server=server, ended_at=None)
    open_spans.update(ended_at=Greatest("started_at", Value(at)))
