"""The kinds of job that archive and restore a version; their params are {"version": id}."""

from dashboard.jobs.kinds import Kind
from dashboard.versions.moves import archive_run, move_abandoned, restore_run

ARCHIVE = Kind("archive", archive_run, move_abandoned)
RESTORE = Kind("restore", restore_run, move_abandoned)
