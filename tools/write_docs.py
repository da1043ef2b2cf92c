"""Writes the tables of docs/ that are generated from code: `make docs`. Two comments enclose each table; a test compares it."""

from collections.abc import Iterable
from pathlib import Path

from repository.config.backends import FILENAME_OF_SUFFIX
from repository.config.model_config import SLIPWAY_PREFIX
from repository.config.own_parameters import OWN_PARAMETERS
from repository.files.foreign_formats import FOREIGN_FORMATS

_END = "\n<!-- end -->\n"
DOCS = Path(__file__).resolve().parents[1] / "docs"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def _parameters() -> str:
    rows = ((f"`{SLIPWAY_PREFIX}{one.name}`", one.values, one.means) for one in OWN_PARAMETERS.values())
    return _table(("parameter", "values", "meaning"), rows)


def _formats() -> str:
    known = ((one, [end for end in one.endings if end not in FILENAME_OF_SUFFIX]) for one in FOREIGN_FORMATS)
    rows = ((one.title, " ".join(f"`{end}`" for end in ends), one.remedy) for one, ends in known if ends)
    return _table(("format", "names", "what to do"), rows)


TABLES = {"parameters": ("configuration.md", _parameters), "formats": ("formats.md", _formats)}


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
