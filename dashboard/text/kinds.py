"""What a kind of text is."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from dashboard.access.authorisation import Actor, Right
from dashboard.models import Model
from dashboard.shared.exceptions import NotFound

INSTALLATION = ""  # the scope of what belongs to no model


class Change(NamedTuple):
    """One entry that is to be made, changed or removed. scope: the name of its model, or INSTALLATION.

    before: the entry of the installation; None if it has none. after: the wanted one; None to remove the entry.
    new_model: whether the model has no row yet.
    """

    scope: str
    key: Any
    before: Any
    after: Any
    new_model: bool = False

    @property
    def model(self) -> Model:
        """The model's row. Raises NotFound if there is none."""
        found = Model.objects.filter(name=self.scope).first()
        if found is None:
            raise NotFound(f"there is no model named '{self.scope}'")
        return found

    def changed(self, field: str, default: object = None) -> bool:
        """Return whether a field of a record differs."""
        return bool((self.before or {}).get(field, default) != (self.after or {}).get(field, default))


class Secrets(Protocol):
    """Where the secrets go that applying makes."""

    def keep(self, whose: str, secret: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of text: one file, or one file of each model.

    one: a noun for an entry. file: its name; in the folder of a model if `of_model`.
    entries: whether the file has entries by name, or in a list (`listed`); otherwise the file is one entry.
    shape: of the whole file; None for a file that is kept as it is (config.pbtxt).
    read: returns what the installation has: scope -> the value of the file, not yet in its one form. normal: brings an entry,
    whose shape has been checked, into that form. write: makes, changes or removes an entry by the services of other rooms, so
    that rights, rules and audit entries are those of a page.
    refused: why a change cannot be applied, found out before anything is; "" for no reason.
    rights: what a change needs. makes_secret: whether making an entry makes a secret.
    sparse: whether a file without entries is left out. lasting: whether an entry stays, because removing it changes nothing.
    """

    name: str
    one: str
    file: str
    shape: Any
    read: Callable[[], Mapping[str, Any]]
    write: Callable[[Change, Actor, Secrets], None]
    of_model: bool = False
    entries: bool = False
    listed: bool = False
    sparse: bool = False
    normal: Callable[[Any], Any] = lambda entry: entry
    refused: Callable[[Change, Actor], str] = lambda change, actor: ""
    rights: Callable[[Change], Iterable[Right]] = lambda change: (Right.OPERATE,)
    makes_secret: Callable[[Any], bool] = lambda entry: False
    lasting: Callable[[Any], bool] = lambda entry: False

    def path(self, scope: str) -> str:
        """Return the path of the file in a folder of text."""
        return f"models/{scope}/{self.file}" if self.of_model else self.file


def administers(change: Change) -> tuple[Right, ...]:
    return (Right.ADMINISTER,)
