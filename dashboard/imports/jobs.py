"""Importing as a kind of job; params {"store": what was asked for}."""

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
