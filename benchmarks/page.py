"""docs/benchmarks.md: each program writes its own part of the page and leaves the other's alone."""

from pathlib import Path

from tests.support.serving_process import ROOT

PAGE = ROOT / "docs" / "benchmarks.md"
SECTION = "# perf_analyzer\n"  # begins the second part


def write_comparison(page: Path, text: str) -> None:
    """The first part, by `make bench`."""
    _, section = _parts(page)
    page.write_text(f"{text.rstrip()}\n\n{section}" if section else text)


def write_perf_analyzer(page: Path, text: str) -> None:
    """The second part, by `make bench-perf-analyzer`; `text` without the heading."""
    comparison, _ = _parts(page)
    page.write_text(f"{comparison.rstrip()}\n\n{SECTION}\n{text}".lstrip())


def _parts(page: Path) -> tuple[str, str]:
    text = page.read_text() if page.exists() else ""
    start = f"\n{text}".find(f"\n{SECTION}")
    return (text, "") if start < 0 else (text[:start], text[start:])
