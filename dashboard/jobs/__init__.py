"""Long work as rows: made, announced to a Celery worker, run once at a time, cancelled, queued again; with pages and REST.
It imports `web` and what is below, and never the rooms whose work it runs: `settings.JOB_KINDS` says where each
kind is, and `kinds.Kind` what it is. Uploads and versions make jobs; the worker and `watch` run and re-queue them."""
