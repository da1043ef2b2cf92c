"""What the server tells of a version beside Triton's state, and the dashboard reads: fields, never the words of a reason."""

from enum import StrEnum


class Condition(StrEnum):
    """Why a version that is UNAVAILABLE is so, where nothing is wrong with that."""

    NONE = ""
    ASLEEP = "asleep"  # its first request loads it
    UNLOADED = "unloaded"  # taken out of service: unloaded, or replaced under the version policy
