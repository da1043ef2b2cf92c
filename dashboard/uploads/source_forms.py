"""The forms of the sources on the page of a new upload."""

from collections.abc import Mapping
from dataclasses import dataclass

from dashboard.uploads.sources.table import allowed_sources


@dataclass(frozen=True, slots=True)
class SourceField:
    """A field as the page shows it. value: what the person typed. error: a sentence, or ""."""

    name: str
    label: str
    example: str
    hint: str
    is_required: bool
    value: str
    error: str


@dataclass(frozen=True, slots=True)
class SourceForm:
    """A source that the page offers. fields: [] unless its form is open."""

    name: str
    label: str
    places: list[str]
    fields: list[SourceField]


def source_forms(open_one: str, typed: Mapping[str, str], errors: Mapping[str, str]) -> list[SourceForm]:
    """Return the sources of which an administrator allows any place; the form of one of them is open.

    typed, errors: name of a field -> text, of the open form.
    """
    forms = []
    for one in allowed_sources():
        places = one.allowed_places()
        fields = [
            SourceField(
                field.name,
                field.label,
                field.example.format(place=places[0].rstrip("/")),
                field.hint,
                field.is_required,
                typed.get(field.name, ""),
                errors.get(field.name, ""),
            )
            for field in one.fields
            if one.name == open_one
        ]
        forms.append(SourceForm(one.name, one.label, places, fields))
    return forms
