"""The kinds of job that fetch, inspect, convert and publish an upload; their params are {"upload": id}."""

from dashboard.jobs.kinds import Kind
from dashboard.uploads.conversion import conversion_abandoned, conversion_run
from dashboard.uploads.fetching import fetch_abandoned, fetch_attempts_in_vain, fetch_run
from dashboard.uploads.inspection import inspection_abandoned, inspection_run
from dashboard.uploads.publication import publication_abandoned, publication_run

FETCH = Kind("fetch", fetch_run, fetch_abandoned, of_upload=True, attempts_in_vain=fetch_attempts_in_vain, turn="fetch")
INSPECT = Kind("inspect", inspection_run, inspection_abandoned, of_upload=True)
CONVERT = Kind("convert", conversion_run, conversion_abandoned, of_upload=True, turn="convert")
PUBLISH = Kind("publish", publication_run, publication_abandoned, of_upload=True)
