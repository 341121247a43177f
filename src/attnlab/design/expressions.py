"""Arithmetic on vectors and matrices in students' answers, without Python's eval: only names, numbers, indices and
operators, in exact rationals. Only a fractional power is rounded, to the nearest float64.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from attnlab.design.exact import decimal
from attnlab.errors import UserError, cut, unknown

Exact = NDArray[Any]  # of Fractions

_LONGEST = 2000
_MOST = 1_000_000  # entries and products in all steps of an expression
_LARGEST = 10**300  # result
_BITS = 4000  # length of any numerator and denominator
_OPERATORS: dict[type[ast.operator], Callable[..., Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.MatMult: np.matmul,
    ast.BitXor: np.outer,
    ast.Pow: np.frompyfunc(lambda base, exponent: _power(base, exponent), 2, 1),
}
_ALLOWED = "numbers, names, K[0], + - * / **, @ (product) and ^ (outer product)"


def evaluate(text: str, names: Mapping[str, Exact]) -> Exact:
    """The value of an expression such as `10*(K[0]+K[1])/2`; `X_t` is the transpose of any matrix X."""
    if len(text) > _LONGEST:
        raise UserError(f"the expression has {len(text)} characters; write at most {_LONGEST}")
    try:
        source = text.strip()
        value = _Evaluation(names, source).value(ast.parse(source, mode="eval").body)
        if any(abs(x) > _LARGEST for x in value.flat):
            raise OverflowError
    except UserError:
        raise
    except (SyntaxError, MemoryError, RecursionError):
        raise UserError(f"'{_short(text)}' is not an expression; use {_ALLOWED}") from None
    except ArithmeticError:
        raise UserError(f"'{_short(text)}' is not finite; check divisions and powers") from None
    except (ValueError, TypeError, IndexError) as error:
        raise UserError(
            f"'{_short(text)}' cannot be computed: {_short(str(error))}; check shapes and indices"
        ) from None
    return value


def exact_array(data: Any) -> Exact:
    """An array of Fractions, of any shape."""
    array = np.asarray(data)
    return array if array.dtype.kind == "O" else np.array(np.frompyfunc(Fraction, 1, 1)(array), dtype=object)


class _Evaluation:
    """One expression, with the amount of arithmetic it may still do."""

    def __init__(self, names: Mapping[str, Exact], source: str) -> None:
        self.names, self.source, self.left = names, source, _MOST

    def value(self, node: ast.expr) -> Exact:
        """The value of a node."""
        match node:
            case ast.Constant(value=int() as whole) if not isinstance(whole, bool):
                return self._allowed(exact_array(Fraction(whole)))
            case ast.Constant(value=float()):
                written = ast.get_source_segment(self.source, node) or ""
                return self._allowed(exact_array(Fraction(decimal(written.replace("_", "")))))
            case ast.Name(id=name):
                return self._named(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return exact_array(-self.value(operand))
            case ast.UnaryOp(op=ast.UAdd(), operand=operand):
                return self.value(operand)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return self._applied(type(op), self.value(left), self.value(right))
            case ast.List(elts=items) | ast.Tuple(elts=items):
                parts = [self.value(item) for item in items]
                self._allow(sum(part.size for part in parts))
                return np.stack(parts) if parts else np.array([], dtype=object)
            case ast.Subscript(value=value, slice=index):
                return exact_array(self.value(value)[_index(index)])
            case ast.Call():
                raise UserError(f"'{_short(ast.unparse(node))}' calls a function; use {_ALLOWED}")
            case ast.Attribute():
                shown = _short(ast.unparse(node))
                raise UserError(f"'{shown}' has an attribute; use {_ALLOWED}, and X_t for a transpose")
        raise UserError(f"'{_short(ast.unparse(node))}' is not allowed; use {_ALLOWED}")

    def _applied(self, op: type[ast.operator], left: Exact, right: Exact) -> Exact:
        """Apply the operation, after checking the size of its result."""
        if op is ast.BitXor:
            self._allow(left.size * right.size)
        elif op is ast.MatMult:
            self._allow(left.size * (right.size // max(1, *right.shape[-2:-1] or right.shape)))
        else:
            self._allow(int(np.prod(np.broadcast_shapes(left.shape, right.shape), dtype=object)))
        return self._allowed(exact_array(_OPERATORS[op](left, right)))

    def _allow(self, entries: int) -> None:
        self.left -= entries
        if self.left < 0:
            raise UserError(f"an expression needs {entries} intermediate numbers; stay below {_MOST} in total")

    def _allowed(self, value: Exact) -> Exact:
        if any(max(x.numerator.bit_length(), x.denominator.bit_length()) > _BITS for x in value.flat):
            raise UserError(f"an expression has a number of more than {_BITS} bits; use shorter numbers")
        return value

    def _named(self, name: str) -> Exact:
        if name in self.names:
            return exact_array(self.names[name])
        if name.endswith("_t") and name[:-2] in self.names:
            return exact_array(self.names[name[:-2]]).T
        raise UserError(unknown("name", name, self.names))


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator == 1:
        if abs(exponent) * max(base.numerator.bit_length(), base.denominator.bit_length()) > _BITS:
            raise OverflowError
        return Fraction(base**exponent.numerator)
    if base < 0:
        raise OverflowError
    return Fraction(float(base) ** float(exponent))


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
    return cut(" ".join(text.split()), 60)
