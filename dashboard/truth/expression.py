"""Own metrics: arithmetic of `label` and `prediction`, with a fixed list of functions. Nothing else is evaluated.

abs(label - prediction) / max(abs(label), 1)
1 if abs(label - prediction) < 0.5 else 0
"""

import ast
import math
import operator
from collections.abc import Callable, Mapping

from dashboard.shared.exceptions import Invalid
from repository.core.python_source import syntax_tree

NAMES = ("label", "prediction")
LONGEST = 200  # characters
_FUNCTIONS: dict[str, tuple[Callable[..., float], int]] = {  # name -> function, number of arguments
    "abs": (abs, 1),
    "sqrt": (math.sqrt, 1),
    "log": (math.log, 1),
    "exp": (math.exp, 1),
    "min": (min, 2),
    "max": (max, 2),
}
_ARITHMETIC: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[float, float], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
FORM = f"an expression of {' and '.join(NAMES)} with + - * /, comparisons, a if b else c, {', '.join(_FUNCTIONS)}"


def parsed(text: str) -> ast.expr:
    """Return the tree of an expression. Raises Invalid if it is none, or has anything that is not on the list."""
    if len(text) > LONGEST:
        raise Invalid.at("expression", f"expected at most {LONGEST} characters")
    try:
        found = syntax_tree(text.strip(), "eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Invalid.at("expression", f"expected {FORM}") from None
    _refuse_others(found)
    return found


def _refuse_others(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) <= 1e100:
            return
        case ast.Name(id=name) if name in NAMES:
            return
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            _refuse_others(inner)
        case ast.BinOp(left=left, op=kind, right=right) if type(kind) in _ARITHMETIC:
            _refuse_others(left)
            _refuse_others(right)
        case ast.Compare(left=left, ops=[kind], comparators=[right]) if type(kind) in _COMPARISONS:
            _refuse_others(left)
            _refuse_others(right)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            for inner in (test, body, orelse):
                _refuse_others(inner)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if (
            name in _FUNCTIONS and len(args) == _FUNCTIONS[name][1]
        ):
            for inner in args:
                _refuse_others(inner)
        case _:
            raise Invalid.at("expression", f"'{ast.unparse(node)[:60]}' is not allowed: expected {FORM}")


def value_of(node: ast.expr, names: Mapping[str, float]) -> float | None:
    """Return the value of a parsed expression; None if it has none, such as a division by zero."""
    try:
        found = _value(node, names)
    except (ArithmeticError, ValueError):
        return None
    return found if math.isfinite(found) else None


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return names[name]
        case ast.UnaryOp(operand=inner):
            return -_value(inner, names)
        case ast.BinOp(left=left, op=kind, right=right):
            return _ARITHMETIC[type(kind)](_value(left, names), _value(right, names))
        case ast.Compare(left=left, ops=[kind], comparators=[right]):
            return float(_COMPARISONS[type(kind)](_value(left, names), _value(right, names)))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _value(body if _value(test, names) else orelse, names)
        case ast.Call(func=ast.Name(id=name), args=args):
            return float(_FUNCTIONS[name][0](*(_value(inner, names) for inner in args)))
    raise ValueError(f"unknown part {type(node).__name__}")  # `parsed` has refused it
