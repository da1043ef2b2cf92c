"""The kind of job that imports a set-up; its params hold a StoreParams as `store`."""

from dashboard.imports.services import KIND, import_run
from dashboard.jobs.kinds import Kind
from dashboard.uploads.publication import publication_abandoned

IMPORT = Kind(
    KIND,
    import_run,
    publication_abandoned,
    resume=("import_resume", "Go on with the import"),
    report="imports/report.html",
)
