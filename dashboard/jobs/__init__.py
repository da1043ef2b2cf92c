"""Jobs: rows of long work that are announced to a Celery worker, run once at a time, cancelled and queued again, with pages and
REST. The room imports `web` and the rooms below; rooms with long work declare a `kinds.Kind` in a module `jobs`. Uploads and
versions make jobs; the worker and `watch` run and re-queue them."""
