"""Jobs: long work that a Celery worker runs, with progress, cancellation, retries, pages and REST. The room imports `web` and
the rooms below. Rooms with long work, such as `uploads`, declare a `kinds.Kind` in a module `jobs` and create jobs. `watch`
queues lost jobs again."""
