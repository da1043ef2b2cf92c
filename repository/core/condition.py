"""The condition of a version, in addition to Triton's state. The dashboard reads it and never parses the text of a reason."""

from enum import StrEnum


class Condition(StrEnum):
    """Distinguishes versions with the same state in Triton, such as versions that are UNAVAILABLE on purpose or by a fault."""

    NONE = ""
    ASLEEP = "asleep"  # the first request loads the version
    SILENT = "silent"  # READY, but its instances do not answer now: their processes hang, or end repeatedly
    STEPLESS = "stepless"  # an ensemble that becomes READY again as soon as the models of its steps are READY
    UNLOADED = "unloaded"  # out of service: unloaded, or replaced under the version policy
