"""The parts of a page that say which versions serve refresh themselves."""

import re
from pathlib import Path

TEMPLATES = Path(__file__).parents[3] / "templates"
# What a template is given of what servers say.
SAYS = re.compile(
    r"{[{%][^}%]*\b(?:serving_release|serving_since|live_versions|needs_attention|summary\.(?:state|serving|instead|changing)"
    r"|summary\|serving|life\.(?:state|error|spans)|standing\.\w+|way_back|bake_left)\b"
)
_INCLUDED = re.compile(r'{% include "([^"]+)"')
_REFRESHED = re.compile(r"<(\w+)[^>]*\bdata-refresh\b(?:[^>{]|{[{%].*?[}%]})*>")
# Those that something else keeps up to date, or that are asked for at the moment they speak of.
ELSEWHERE = {
    "playground/playground.html": "its script shows the note of the state that the head tells, which refreshes itself",
    "uploads/existing_facts.html": "asked for anew whenever a name is typed",
}


def texts() -> dict[str, str]:
    return {str(path.relative_to(TEMPLATES)): path.read_text() for path in TEMPLATES.rglob("*.html")}


def parts_of(text: str) -> list[str]:
    """Return what stands inside the elements of a template that refresh themselves."""
    found = []
    for start in _REFRESHED.finditer(text):
        depth, tag = 1, start[1]
        for one in re.finditer(rf"<(/?){tag}\b", text[start.end() :]):
            depth += -1 if one[1] else 1
            if depth == 0:
                found.append(text[start.start() : start.end() + one.start()])
                break
    return found


def test_every_sentence_about_what_serves_is_in_a_part_that_refreshes_itself() -> None:
    known = texts()
    followed: set[str] = set()
    left = [name for text in known.values() for part in parts_of(text) for name in _INCLUDED.findall(part)]
    assert left
    while left:
        name = left.pop()
        if name not in followed:
            followed.add(name)
            left += _INCLUDED.findall(known[name])
    stale = []
    for name, text in known.items():
        outside = text
        for part in parts_of(text):
            outside = outside.replace(part, "")
        if name not in followed and name not in ELSEWHERE and SAYS.search(outside):
            stale.append(f"{name}: {SAYS.search(outside)[0]}")
    assert stale == []


def test_the_exceptions_are_needed() -> None:
    assert all(SAYS.search(texts()[name]) for name in ELSEWHERE)
