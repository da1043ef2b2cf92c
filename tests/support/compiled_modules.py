"""Chooses whether tests, and all their servers, run the compiled modules (`make test-compiled`) or, by default, the sources.

This module is imported before the rest of `serving`. A test that replaces an inner part of a compiled module has the mark
`interpreted`, because compiled code calls its own functions directly.
"""

import os

import pytest

from serving.compiled import loading

COMPILED = os.environ.get("TEST_COMPILED") == "yes"

if COMPILED:
    os.environ.pop(loading.VARIABLE, None)
    loading.use()
    if not loading.Compiled.used:
        raise RuntimeError(
            f"TEST_COMPILED=yes, but the modules run {loading.Compiled.sentence or 'interpreted'}: make compiled"
        )
else:
    os.environ[loading.VARIABLE] = "no"


def skip_what_replaces_inner_parts(items: list[pytest.Item]) -> None:
    if COMPILED:
        for item in items:
            if item.get_closest_marker("interpreted"):
                item.add_marker(pytest.mark.skip(reason="replaces an inner part of a module that is compiled"))
