"""Python sources as syntax trees, made by one thread at a time; nothing of them runs."""

import ast
import threading
from typing import Literal, overload

# CPython counts the depth of a tree once for all threads: where two make one at a time, either may fail (SystemError).
_PARSING = threading.Lock()


@overload
def syntax_tree(source: str | bytes, mode: Literal["exec"] = "exec") -> ast.Module: ...
@overload
def syntax_tree(source: str | bytes, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(source: str | bytes, mode: Literal["exec", "eval"] = "exec") -> ast.AST:
    """Return what `ast.parse` makes of a source; raises what it raises."""
    with _PARSING:
        return ast.parse(source, mode=mode)
