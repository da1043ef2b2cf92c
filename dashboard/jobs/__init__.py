"""Long work as rows: made, announced to a Celery worker, run once at a time, cancelled, queued again; with pages and REST.
It imports `web` and what is below; the rooms whose work it runs declare a `kinds.Kind` in a module `jobs`. Uploads and
versions make jobs; the worker and `watch` run and re-queue them."""
