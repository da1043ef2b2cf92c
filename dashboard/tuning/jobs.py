"""The kinds of jobs that tune a version and start a canary of the chosen configuration; their params are {"tuning": id}."""

from django.urls import reverse

from dashboard.jobs.kinds import Kind
from dashboard.measurements.jobs import TURN
from dashboard.models import Job, Tuning
from dashboard.tuning.canary import canary_abandoned, canary_run
from dashboard.tuning.runs import trials_in_vain, tune_abandoned, tune_run


def _page(job: Job) -> tuple[str, str] | None:
    found = Tuning.objects.filter(pk=job.params["tuning"]).select_related("version__model").first()
    if found is None:
        return None
    version = found.version
    return f"{reverse('version_tune', args=[version.model.name, version.number])}?run={found.pk}", "Open the tuning"


TUNE = Kind("tune", tune_run, tune_abandoned, page=_page, attempts_in_vain=trials_in_vain, turn=TURN)
TUNED_CANARY = Kind("tuned_canary", canary_run, canary_abandoned, page=_page)
