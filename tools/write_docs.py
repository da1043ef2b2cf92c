"""Writes the tables of docs/ that code declares: `make docs`. Each stands between two comments, and a test compares it."""

from collections.abc import Iterable
from pathlib import Path

from repository.config.model_config import SLIPWAY_PREFIX
from repository.config.own_parameters import OWN_PARAMETERS

DOCS = Path(__file__).resolve().parents[1] / "docs"


def _table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (heads, ["---"] * len(heads), *rows))


def _parameters() -> str:
    rows = ((f"`{SLIPWAY_PREFIX}{one.name}`", one.values, one.means) for one in OWN_PARAMETERS.values())
    return _table(("parameter", "values", "meaning"), rows)


TABLES = {"parameters": ("configuration.md", _parameters)}


def written(name: str) -> tuple[Path, str]:
    """Return the page that has a table, and its text with the table as the code declares it."""
    page, table = TABLES[name]
    path = DOCS / page
    begin, end = f"<!-- {name}: make docs -->\n\n", "\n<!-- end -->\n"
    head, _, rest = path.read_text().partition(begin)
    _, _, tail = rest.partition(end)
    if not tail:
        raise ValueError(f"{page} has no place for the table '{name}'")
    return path, f"{head}{begin}{table()}{end}{tail}"


if __name__ == "__main__":
    for table in TABLES:
        page, text = written(table)
        page.write_text(text)
