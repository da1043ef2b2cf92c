"""What the server says of a version beside Triton's state, for the dashboard, which never reads the words of a reason."""

from enum import StrEnum


class Condition(StrEnum):
    """What Triton's state does not say: an UNAVAILABLE version with which nothing is wrong, a READY one that answers nobody."""

    NONE = ""
    ASLEEP = "asleep"  # its first request loads it
    SILENT = "silent"  # READY, but none of its instances would answer now: their processes hang, or keep ending
    STEPLESS = "stepless"  # an ensemble of which a step is not ready: it is ready again when that is
    UNLOADED = "unloaded"  # taken out of service: unloaded, or replaced under the version policy
