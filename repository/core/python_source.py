"""Parses Python sources into syntax trees, in one thread at a time; none of the code runs."""

import ast
import threading
from typing import Literal, overload

# CPython has one counter for the depth of a tree in all threads: two threads that parse at the same time may raise SystemError.
_PARSING = threading.Lock()


@overload
def syntax_tree(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def syntax_tree(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """Return the tree of `ast.parse`. Raises the same errors."""
    with _PARSING:
        return ast.parse(source, mode=mode)
