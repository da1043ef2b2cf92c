"""The kind of job that measures a version; its params are {"measurement": id}."""

from django.urls import reverse

from dashboard.jobs.kinds import Kind
from dashboard.measurements.runs import measure_abandoned, measure_run
from dashboard.models import Job, Measurement

TURN = "machine"  # of measurements and tunings, because they would disturb each other


def _page(job: Job) -> tuple[str, str] | None:
    found = Measurement.objects.filter(pk=job.params["measurement"]).select_related("version__model").first()
    if found is None:
        return None
    version = found.version
    address = reverse("version_benchmark", args=[version.model.name, version.number])
    return f"{address}?run={found.pk}", "Open the benchmark"


MEASURE = Kind("measure", measure_run, measure_abandoned, page=_page, turn=TURN)
