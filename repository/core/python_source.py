"""Python sources as syntax trees, made by one thread at a time; nothing of them runs."""

import ast
import threading
from typing import Literal, overload

# CPython counts the depth of a tree in one place for all threads: if two parse at the same time, either may raise SystemError.
_PARSING = threading.Lock()


@overload
def syntax_tree(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def syntax_tree(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """Return the tree of `ast.parse`; raises the same errors."""
    with _PARSING:
        return ast.parse(source, mode=mode)
