"""The condition of a version beside Triton's state, for the dashboard, which never parses the text of a reason."""

from enum import StrEnum


class Condition(StrEnum):
    """Tells apart versions of the same state in Triton: UNAVAILABLE on purpose or not, READY and answering or not."""

    NONE = ""
    ASLEEP = "asleep"  # its first request loads it
    SILENT = "silent"  # READY, but its instances would not answer now: their processes hang, or keep ending
    STEPLESS = "stepless"  # an ensemble, READY again once its steps are
    UNLOADED = "unloaded"  # taken out of service: unloaded, or replaced under the version policy
