"""The kinds of job that inspect and publish an upload; their params are {"upload": id}."""

from dashboard.jobs.kinds import Kind
from dashboard.uploads.inspection import inspection_abandoned, inspection_run
from dashboard.uploads.publication import publication_abandoned, publication_run

INSPECT = Kind("inspect", inspection_run, inspection_abandoned, of_upload=True)
PUBLISH = Kind("publish", publication_run, publication_abandoned, of_upload=True)
