"""The kind of job that replays a capture; its params are {"replay": id}."""

from django.urls import reverse

from dashboard.access.authorisation import CLIENT_DATA
from dashboard.jobs.kinds import Kind
from dashboard.measurements.jobs import TURN
from dashboard.models import Job, Replay
from dashboard.replays.running import replay_abandoned, replay_attempts_in_vain, replay_run


def _page(job: Job) -> tuple[str, str] | None:
    found = Replay.objects.filter(pk=job.params["replay"]).select_related("capture__model").first()
    if found is None:
        return None
    return reverse("replay", args=[found.capture.model.name, found.capture_id, found.pk]), "Open the replay"


REPLAY = Kind(
    "replay",
    replay_run,
    replay_abandoned,
    right=CLIENT_DATA,
    page=_page,
    attempts_in_vain=replay_attempts_in_vain,
    turn=TURN,
)
