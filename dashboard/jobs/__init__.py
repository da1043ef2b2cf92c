"""Jobs: rows of long work that are announced to a Celery worker, run once at a time, cancelled and queued again, with pages and
REST. The room imports `web` and the rooms below; rooms with long work declare a `kinds.Kind` in a module `jobs`. Rooms
such as `uploads` and `versions` create jobs; the worker runs them, and `watch` queues lost ones again."""
