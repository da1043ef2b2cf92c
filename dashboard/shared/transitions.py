"""Changes of a row's state: one statement checks the old state and writes the new one, so only one of two callers succeeds."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Model, Q


@dataclass(frozen=True, slots=True)
class Transition:
    """A change from one of the states `before` to `after`.

    who: the caller, for readers of the table. refusal: the first words of the error for a row in another state.
    """

    before: tuple[str, ...]
    after: str
    who: str
    refusal: str


def move(row: Model, transition: Transition, changes: Mapping[str, object], *, where: Q | None = None) -> bool:
    """Write the new state and `changes` to the database. Return False, with nothing written, if the row is in another state.

    row: the object is not changed, because the surrounding transaction may be rolled back; refresh it afterwards.
    where: a further condition on the row.
    """
    rows = type(row)._default_manager.filter(where or Q(), pk=row.pk, state__in=transition.before)
    return bool(rows.update(state=transition.after, **changes))
