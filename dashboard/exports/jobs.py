"""The kind of job that exports a release; its params are {"release": id, "address": text}."""

from django.urls import reverse

from dashboard.access.authorisation import Right
from dashboard.exports.sending import KIND, export_abandoned, export_run
from dashboard.jobs.kinds import Kind
from dashboard.models import Job, Release


def _page(job: Job) -> tuple[str, str] | None:
    found = Release.objects.filter(pk=job.params["release"]).select_related("model").first()
    return None if found is None else (reverse("release", args=[found.model.name, found.number]), "Open the release")


EXPORT = Kind(KIND, export_run, export_abandoned, right=Right.OPERATE, page=_page, turn=KIND)
