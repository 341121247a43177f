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
MOST = 1_000_000  # entries of any intermediate value
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
    except (ValueError, TypeError, IndexError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"'{_short(text)}' cannot be computed: {_short(str(error))}; check shapes and indices"
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
            return _applied(type(op), np.asarray(_value(left, names)), np.asarray(_value(right, names)))
        case ast.List(elts=items) | ast.Tuple(elts=items):
            parts = [np.asarray(_value(item, names)) for item in items]
            _allow(sum(part.size for part in parts))
            return np.array(parts)
        case ast.Subscript(value=value, slice=index):
            return _value(value, names)[_index(index)]
        case ast.Call():
            raise UserError(f"'{_short(ast.unparse(node))}' calls a function; use {ALLOWED}")
        case ast.Attribute():
            raise UserError(f"'{_short(ast.unparse(node))}' has an attribute; use {ALLOWED}, and X_t for a transpose")
    raise UserError(f"'{_short(ast.unparse(node))}' is not allowed; use {ALLOWED}")


def _applied(op: type[ast.operator], left: Array, right: Array) -> Any:
    """The operation, once its result is known to be of a reasonable size."""
    if op is ast.BitXor:
        _allow(left.size * right.size)
    elif op is ast.MatMult:
        _allow(left.size // max(left.shape[-1:] or (1,)) * (right.size // max(1, *right.shape[-2:-1] or right.shape)))
    else:
        _allow(int(np.prod(np.broadcast_shapes(left.shape, right.shape), dtype=object)))
    return OPERATORS[op][1](left, right)


def _allow(entries: int) -> None:
    if entries > MOST:
        raise UserError(f"an expression would have {entries} numbers on its way; stay below {MOST}")


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
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
