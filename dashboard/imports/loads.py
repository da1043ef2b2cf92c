"""The loads of imported models: which models serve, which did not load and why, and whether a server is there to load them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.utils import timezone

from dashboard.models import Model
from dashboard.releases.selectors import lives_of, newest_release
from dashboard.servers.selectors import ANSWERING, production_servers
from dashboard.shared.choices import DesiredState, ReleaseState, ServerStatus

SILENCE = timedelta(seconds=60)  # a server that starts, or starts again, answers within this time
_LOADED = {"desired_state": DesiredState.LOADED}
_ENDED = (ServerStatus.DOWN, ServerStatus.STOPPED)


@dataclass(slots=True)
class Loads:
    """The loads that an import waits for, as the bundled server reports them. waiting: names of models, in order."""

    waiting: list[str]
    began: datetime = field(default_factory=timezone.now)
    answered: datetime | None = None

    def take_finished(self) -> list[tuple[str, list[int], str]]:
        """Return the name, versions and error ("" if loaded) of each model that loaded or failed to load since the last call.

        A model that somebody unloads or deletes meanwhile is neither waited for nor returned.
        """
        wanted = {row.name: newest_release(row) for row in Model.objects.filter(name__in=self.waiting, **_LOADED)}
        lives = {life.release.pk: life for life in lives_of(row for row in wanted.values() if row is not None)}
        found: list[tuple[str, list[int], str]] = []
        waiting: list[str] = []
        for name in self.waiting:
            release = wanted.get(name)
            life = lives.get(release.pk) if release is not None else None
            if release is None or life is None:
                continue
            if life.state in (ReleaseState.SERVING, ReleaseState.FAILED):
                found.append((name, list(release.versions), life.error))
            elif life.state == ReleaseState.HELD:
                found.append((name, list(release.versions), "it reaches production by a deployment only"))
            else:
                waiting.append(name)
        self.waiting = waiting
        return found

    def nobody_loads(self) -> bool:
        """Return whether no server will load the models: there is none, it ended without answering since the wait began,
        or it has been silent for longer than SILENCE."""
        states = [one.state for one in production_servers() if hasattr(one, "state")]
        answering = [one for one in states if one.state in ANSWERING]
        state = max(answering, key=lambda one: one.checked_at or self.began, default=next(iter(states), None))
        if state is None or (state.state in _ENDED and not self.answered):
            return True
        if state.state in ANSWERING:
            self.answered = state.checked_at
            return self.answered is None or timezone.now() - self.answered > SILENCE
        return timezone.now() - (self.answered or self.began) > SILENCE


def to_wait_for(names: Iterable[str]) -> Loads:
    """Return the loads of the named models whose desired state is loaded."""
    once = list(dict.fromkeys(names))
    wanted = set(Model.objects.filter(name__in=once, **_LOADED).values_list("name", flat=True))
    return Loads([name for name in once if name in wanted])
