"""One word for one thing in every page, message and error: a version or release is live, a server running, a model ready."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
MODULES = sorted(path for path in (ROOT / "dashboard").rglob("*.py") if "migrations" not in path.parts)
SCRIPTS = sorted((ROOT / "static" / "js").rglob("*.js"))

# What says "live" speaks of one of these.
_OF_VERSIONS = re.compile(
    r"version|release|restored|replaced|make|made|making|default|policy|alias|nothing was", re.IGNORECASE
)
# Beside versions, as the name of a source of examples, and of a task.
_ALONE = ("live", "live now", "was live", "what was live when", "live traffic", "live feed of x")
_LIVE = re.compile(r"\blive\b", re.IGNORECASE)
# A release is deployed to the servers of an environment, and nothing else is.
_DEPLOY, _DEPLOYING = r"\bdeploy(ed|s)?\b(?! (the )?releases?\b)", ("deployments", "fleet")
# Words for a thing that have another one -> the right one.
WRONG = {
    r"\brevisions?\b": "release",
    r"\b(live|ready) servers?\b|\bserver is live\b|\bserver lives\b": "a server is running",
    r"\b(versions?|releases?|models?) (is|are|was|were) running\b|\brunning (version|release|model)s?\b": "live, or ready",
    _DEPLOY: "publish, or make live",
}


def texts(path: Path) -> Iterator[str]:
    """Give the sentences and words of a file that a person may read, with X for what is filled in."""
    source = path.read_text()
    if path.suffix == ".html":
        yield from _of_template(source)
    elif path.suffix == ".js":
        code = re.sub(r"\$\{[^{}]*\}", "X", re.sub(r"^\s*(//|\*|/\*).*$", "", source, flags=re.M))
        yield from (text for _, text in re.findall(r'(["`])((?:(?!\1).)* (?:(?!\1).)*)\1', code))
    else:
        yield from (text for text in _strings(ast.parse(source)) if " " in text)


def _of_template(source: str) -> Iterator[str]:
    plain = re.sub(r"{#.*?#}|{%.*?%}|{{.*?}}", " X ", source)
    yield from re.findall(r'(?:placeholder|title|aria-label|data-confirm|data-confirm-title)="([^"]*)"', plain)
    without_marks = re.sub(r"</?(b|code|em)\b[^>]*>", "", plain)
    yield from (" ".join(text.split()) for text in re.split(r"<[^>]*>", without_marks) if text.strip())


def _strings(tree: ast.AST) -> Iterator[str]:
    """Give a module's texts, f-strings whole. No docstring is one."""
    apart: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            apart.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            apart |= {id(value) for value in node.values}
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in apart:
            yield node.value


@pytest.mark.parametrize("path", [*TEMPLATES, *MODULES, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_each_thing_has_its_own_word(path: Path) -> None:
    for text in texts(path):
        for pattern, right in WRONG.items():
            if pattern == _DEPLOY and path.parent.name in _DEPLOYING:
                continue
            assert not re.search(pattern, text, re.IGNORECASE), f"say {right}: {text!r}"
        if _LIVE.search(text) and text.strip(" ·").lower() not in _ALONE:
            assert _OF_VERSIONS.search(text), f"live is said of versions and releases: {text!r}"


def test_the_rule_finds_the_wrong_words() -> None:
    module = ast.parse('"""The server is live."""\nraise Error(f"the server {name} is live by now")')
    assert list(_strings(module)) == ["the server X is live by now"]
    assert not _OF_VERSIONS.search("the server X is live by now")
