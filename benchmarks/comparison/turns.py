"""Who is measured when: rounds, in each of which every server has its turn, in the reverse order of the round before."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def order(items: Sequence[T], number: int) -> list[T]:
    """Return whose turn it is in a round: what grows or fades while a machine works then favours nobody."""
    return list(items) if number % 2 else list(reversed(items))
