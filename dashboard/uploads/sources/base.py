"""The abstract source of an upload, and what all sources have in common.

A source has four methods. `allowed_places` says what the administrator allows. `located` checks the fields that a person filled
in, and replaces names that may move, such as an alias, by what they name now. `files` lists the files at that place. `read`
streams the bytes of one file from an offset, so that a copy continues where it was broken off.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from typing import IO, NamedTuple

from dashboard.shared.exceptions import Conflict, Invalid

MOST_FILES = 10_000  # the files of one upload
PIECE_BYTES = 1 << 20

Pieces = Generator[bytes, None, None]
Place = dict[str, str]  # the fields that say where a source's files are


class SourceFile(NamedTuple):
    """A file of a source.

    name: below the source. token: changes with the content; "" if the source tells nothing of the kind. sha256: in hex, "" if
    the source does not tell it.
    """

    name: str
    size: int
    token: str = ""
    sha256: str = ""


class Field(NamedTuple):
    """A field of the form of a source. example: shown in the empty field; {place} stands for the first allowed place."""

    name: str
    label: str
    example: str
    hint: str = ""
    is_required: bool = True


class SourceChanged(Conflict):
    """A file is not the one that was listed, so the copy cannot be continued."""

    def __init__(self, name: str, change: str) -> None:
        super().__init__(f"'{name}' {change} while it was fetched; begin a new upload")


class Source(ABC):
    """A kind of place from which the files of an upload are fetched."""

    name: str  # in a row and over REST
    label: str  # in a sentence: "from a URL"
    setting: str  # what an administrator sets to allow places
    fields: tuple[Field, ...] = ()

    @abstractmethod
    def allowed_places(self) -> list[str]:
        """Return the places that an administrator allows; [] if this source is off."""

    def located(self, asked: Mapping[str, str]) -> Place:
        """Return the place that a person asked for. Raises Invalid, Forbidden, NotFound or Unavailable."""
        return {field.name: required(asked, field) for field in self.fields}

    @abstractmethod
    def files(self, place: Place) -> list[SourceFile]:
        """Return the files at a place, at most MOST_FILES. Raises Invalid, Forbidden, NotFound or Unavailable."""

    @abstractmethod
    def read(self, place: Place, file: SourceFile, offset: int) -> Pieces:
        """Yield the bytes of a file from `offset` on. Closing the generator closes the file or connection.

        Raises SourceChanged if the file is not the listed one, also after its last byte. Raises Unavailable if the connection
        breaks; the copy can then be continued.
        """

    def proposed_name(self, place: Place) -> str:
        """Return a name for a model at this place, as the browser proposes one for a file."""
        return model_name_of(self.title(place))

    def public(self, place: Place) -> Place:
        """Return a place without what may be a secret, as the row of an upload stores it."""
        return place

    def title(self, place: Place) -> str:
        """Return the place as pages, logs and answers show it, without secrets."""
        return place["address"]


def model_name_of(title: str) -> str:
    """Return the last part of a path or address as a name of a model, without the ending of a file."""
    last = title.rstrip("/").rpartition("/")[2]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", last.partition(".")[0]).strip("_-")[:100]


def required(asked: Mapping[str, str], field: Field) -> str:
    """Return the text of a field. Raises Invalid, at the field, if it is missing, too long, or not printable."""
    text = asked.get(field.name, "").strip()
    if not text and field.is_required:
        raise Invalid.at(field.name, f"{field.label}: this field is required")
    if len(text) > 2000 or not text.isprintable():
        raise Invalid.at(field.name, f"{field.label}: expected at most 2,000 printable characters")
    return text


def pieces(file: IO[bytes]) -> Pieces:
    """Yield the rest of a file in pieces of at most PIECE_BYTES."""
    while piece := file.read(PIECE_BYTES):
        yield piece


def refuse_too_many(count: int) -> None:
    if count > MOST_FILES:
        raise Invalid(f"there are more than {MOST_FILES} files there; name a folder with fewer files")
