"""Arithmetic on vectors and matrices as students write it, without Python's eval: names, numbers, indices and
operators only.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import numpy as np

from attnlab.design.attention import Array
from attnlab.errors import UserError, unknown

LONGEST = 2000
OPERATORS: dict[type[ast.operator], tuple[str, Any]] = {
    ast.Add: ("+", np.add),
    ast.Sub: ("-", np.subtract),
    ast.Mult: ("*", np.multiply),
    ast.Div: ("/", np.divide),
    ast.MatMult: ("@", np.matmul),
    ast.BitXor: ("^", np.outer),
    ast.Pow: ("**", np.power),
}
ALLOWED = "numbers, names, K[0], + - * / **, @ (product) and ^ (outer product)"


def evaluate(text: str, names: Mapping[str, Array]) -> Array:
    """The value of an expression such as `10*(K[0]+K[1])/2`; `X_t` is the transpose of any matrix X."""
    if len(text) > LONGEST:
        raise UserError(f"the expression has {len(text)} characters; write at most {LONGEST}")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        with np.errstate(all="ignore"):
            value = np.asarray(_value(tree.body, names), dtype=np.float64)
    except (SyntaxError, MemoryError, RecursionError):
        raise UserError(f"'{_short(text)}' is not an expression; use {ALLOWED}") from None
    except (ValueError, TypeError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"'{_short(text)}' cannot be computed: {str(error).splitlines()[0]}; check shapes and indices"
        ) from None
    if not np.isfinite(value).all():
        raise UserError(f"'{_short(text)}' is not finite; check divisions and powers")
    return value


def _value(node: ast.expr, names: Mapping[str, Array]) -> Any:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return np.float64(number)
        case ast.Name(id=name):
            return _named(name, names)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, names)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)][1](_value(left, names), _value(right, names))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return np.array([_value(item, names) for item in items])
        case ast.Subscript(value=value, slice=index):
            return _value(value, names)[_index(index)]
        case ast.Call():
            raise UserError(f"'{_short(ast.unparse(node))}' calls a function; use {ALLOWED}")
        case ast.Attribute():
            raise UserError(f"'{_short(ast.unparse(node))}' has an attribute; use {ALLOWED}, and X_t for a transpose")
    raise UserError(f"'{_short(ast.unparse(node))}' is not allowed; use {ALLOWED}")


def _named(name: str, names: Mapping[str, Array]) -> Array:
    if name in names:
        return names[name]
    if name.endswith("_t") and name[:-2] in names:
        return names[name[:-2]].T
    raise UserError(unknown("name", name, names))


def _index(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as number)):
            return -number
        case ast.Tuple(elts=items):
            return tuple(_index(item) for item in items)
    raise UserError(f"the index '{_short(ast.unparse(node))}' must be a whole number, such as K[0]")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
