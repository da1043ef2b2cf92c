"""One row of the repository index: Triton's fields, and what this server tells beside them."""

from typing import NamedTuple

from repository.core.condition import Condition


class IndexRow(NamedTuple):
    """`version` and `state` are "" for a model of which no version was ever loaded. `failed`: the last load failed."""

    name: str
    version: str = ""
    state: str = ""
    reason: str = ""
    condition: Condition = Condition.NONE
    failed: bool = False
