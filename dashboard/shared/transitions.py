"""How a row's state changes: in one statement that looks where it starts, so that of two who try one is refused."""

from collections.abc import Mapping
from dataclasses import dataclass

from django.db.models import Model, Q


@dataclass(frozen=True, slots=True)
class Transition:
    """A row in one of the states `before` comes into `after`.

    who: what asks for it, for the reader of the table.
    refusal: the beginning of the sentence for a row that is in another state.
    """

    before: tuple[str, ...]
    after: str
    who: str
    refusal: str


def move(row: Model, transition: Transition, changes: Mapping[str, object], *, where: Q | None = None) -> bool:
    """Write the new state, and `changes` with it, to the database; False, with nothing written, from another state.

    row: stays as it was read, for the transaction around this may still be rolled back; refresh it after that.
    where: what else has to hold of the row.
    """
    rows = type(row)._default_manager.filter(where or Q(), pk=row.pk, state__in=transition.before)
    return bool(rows.update(state=transition.after, **changes))
