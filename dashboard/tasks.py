"""Celery's side of jobs: one thin task for all kinds."""

from dashboard.celery import app
from dashboard.services.jobs import job_run


@app.task(name="dashboard.run_job", acks_late=False)
def run_job(job_id: int) -> None:
    job_run(job_id=job_id)
