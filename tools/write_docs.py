"""Writes the tables of docs/ that are generated: `make docs`. Two comments enclose each table; a test compares it."""

import json
from collections.abc import Iterable
from pathlib import Path

from dashboard.conversions.recipes.table import RECIPES, Recipe, Source, recipes_for
from repository.config.backends import FILENAME_OF_SUFFIX
from repository.config.model_config import SLIPWAY_PREFIX
from repository.config.own_parameters import OWN_PARAMETERS
from repository.files.foreign_formats import FOREIGN_FORMATS, ForeignFormat

_END = "\n<!-- end -->\n"
ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
FIGURES = ROOT / "tests" / "dashboard" / "conversions" / "figures.jsonl"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def _parameters() -> str:
    rows = ((f"`{SLIPWAY_PREFIX}{one.name}`", one.values, one.means) for one in OWN_PARAMETERS.values())
    return _table(("parameter", "values", "meaning"), rows)


def _formats() -> str:
    known = ((one, [end for end in one.endings if end not in FILENAME_OF_SUFFIX]) for one in FOREIGN_FORMATS)
    rows = ((one.title, " ".join(f"`{end}`" for end in ends), _advice(one)) for one, ends in known if ends)
    return _table(("format", "names", "what to do"), rows)


def _advice(kind: ForeignFormat) -> str:
    """Return what a person does with a file: upload it, if a recipe takes it, or the remedy."""
    takes = [one.takes for one in _recipes_of(kind)]
    return f"upload it; the dashboard converts {', and '.join(takes)}" if takes else kind.remedy


def _recipes_of(kind: ForeignFormat) -> list[Recipe]:
    """Return the recipes for files that are not served, which take this kind alone or beside a file that some recipe wants."""
    named = dict.fromkeys(kind.endings, kind)
    found = [recipes_for(Source(Path(), (*named, *beside), named)) for beside in ((), ("config.json",), (".py",))]
    return [one for one in RECIPES if not one.of_served and any(one in some for some in found)]


def _conversions() -> str:
    """The figures that `make conversion-figures` wrote; the last line of an artefact counts."""
    found = {one["artefact"]: one for one in map(json.loads, FIGURES.read_text().splitlines())}
    rows = (
        (f"`{name}`", f"`{one['recipe']}`", f"{one['seconds']:.0f}", _number(one["maximum"]), _share(one["agreement"]))
        for name, one in sorted(found.items(), key=lambda item: (item[1]["recipe"], item[0]))
    )
    return _table(("artefact", "recipe", "seconds", "maximum difference", "same label or class"), rows)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


TABLES = {
    "parameters": ("configuration.md", _parameters),
    "formats": ("formats.md", _formats),
    "conversions": ("formats.md", _conversions),
}


def placed(name: str) -> str:
    """Return a table with the comments around it."""
    return f"{_begin(name)}{TABLES[name][1]()}{_END}"


def _begin(name: str) -> str:
    return f"<!-- {name}: make docs -->\n\n"


def written(name: str) -> tuple[Path, str]:
    """Return the page with a table, and the text of that page with the table that the code declares."""
    path = DOCS / TABLES[name][0]
    head, _, rest = path.read_text().partition(_begin(name))
    _, _, tail = rest.partition(_END)
    if not tail:
        raise ValueError(f"{path.name} has no place for the table '{name}'")
    return path, f"{head}{placed(name)}{tail}"


if __name__ == "__main__":
    for table in TABLES:
        page, text = written(table)
        page.write_text(text)
