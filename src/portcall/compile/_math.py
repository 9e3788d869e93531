# SPDX-License-Identifier: Apache-2.0
"""Functions of floating-point values that LLVM has no vector code for: polynomials, as exact as float32 is.

LLVM turns ``exp`` of a vector into a call of the C library for each lane, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

Expr = Any


def call(name: str, arguments: Sequence[Expr], dtype: str) -> Expr:
    """Return a call of a function, or what stands for it in float32."""
    if dtype == "float32" and name in _FLOAT32:
        return _FLOAT32[name](*arguments)
    made: Any = getattr(tirx, {"fabs": "abs"}.get(name, name))(*arguments)
    return made


def _c(value: float) -> Expr:
    return tirx.const(value, "float32")


def _let(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Return an expression with a name for what it uses several times: TVM writes each use out."""
    name = tirx.Var("v", "float32")
    return tirx.Let(name, value, body(name))


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule; the coefficient of the highest power comes first."""
    total = _c(coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _c(coefficient)
    return total


def _between(low: float, x: Expr, high: float) -> Expr:
    """Return x, or the nearest limit; in this order of operands, what is no number stays so."""
    return tirx.max(_c(low), tirx.min(_c(high), x))


def exp(x: Expr) -> Expr:
    """e**x by 2**n * e**r with n = round(x / ln 2): Cody and Waite's reduction; the polynomial is that of Cephes' expf.

    Relative error 1e-7. Below -87 it is 0 rather than nearly a denormal number; above 88.7 it is infinite.
    """
    # A number of this size has no fraction: the sum is rounded, and n + 126 is in its last bits.
    large = float(3 << 22) + 126
    return _let(_between(-87.5, x, 89.0), lambda x: _let(
        x * _c(1.44269504088896341) + _c(large), lambda sum_: _let(
            sum_ - _c(large), lambda n: _let(
                x - n * _c(0.693359375) - n * _c(-2.12194440e-4), lambda r: _exp_of_rest(r, sum_)))))  # fmt: skip


def _exp_of_rest(r: Expr, sum_: Expr) -> Expr:
    coefficients = (
        1.9875691500e-4,
        1.3981999507e-3,
        8.3334519073e-3,
        4.1665795894e-2,
        1.6666665459e-1,
        5.0000001201e-1,
    )
    p = _polynomial(r, coefficients) * (r * r) + r + _c(1.0)
    # Half of 2**n, so that n = 128 does not overflow before the product does.
    half = tirx.reinterpret("float32", tirx.reinterpret("int32", sum_) << 23)
    return p * half * _c(2.0)


def sigmoid(x: Expr) -> Expr:
    return _c(1.0) / (_c(1.0) + exp(_c(0.0) - x))


def tanh(x: Expr) -> Expr:
    """A rational function as in Eigen's and XLA's: relative error 3e-7, beyond the limits 0.99999976."""
    p = (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
         1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03)  # fmt: skip
    q = (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
    return _rational(_between(-7.90531110763549805, x, 7.90531110763549805), p, q)


def _rational(x: Expr, p: Sequence[float], q: Sequence[float]) -> Expr:
    """Return x * P(x**2) / Q(x**2)."""
    return _let(x, lambda x: _let(x * x, lambda square: x * _polynomial(square, p) / _polynomial(square, q)))


def erf(x: Expr) -> Expr:
    """Error function: Abramowitz and Stegun 7.1.26 is too rough, so a rational function as in Eigen's and XLA's.

    x * P(x**2) / Q(x**2) for |x| <= 4, beyond which it is 1 to the last bit of float32.
    """
    p = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
         -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
    q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
         -1.42647390514189e-02)  # fmt: skip
    return _rational(_between(-4.0, x, 4.0), p, q)


def log(x: Expr) -> Expr:
    """Natural logarithm: x = 2**n * m with m in [sqrt(1/2), sqrt(2)), and the polynomial of Cephes' logf for m - 1.

    Numbers below the least normal one are scaled first. 0 gives -inf, and what is less than 0 no number.
    """
    root, mantissa = (tirx.const(bits, "int32") for bits in (0x3F3504F3, 0x7FFFFF))  # of sqrt(1/2)

    def of_bits(x: Expr, small: Expr, bits: Expr) -> Expr:
        n = tirx.Cast("float32", bits >> 23) - tirx.Select(small, _c(23.0), _c(0.0))
        rest = tirx.reinterpret("float32", (bits & mantissa) + root) - _c(1.0)
        return _let(rest, lambda r: _let(r * r, lambda square: _let(n, lambda n: _log_of(x, r, square, n))))

    def of(x: Expr) -> Expr:
        small = x < _c(1.17549435e-38)
        scaled = tirx.Select(small, x * _c(float(1 << 23)), x)
        bits = tirx.Var("k", "int32")
        return tirx.Let(bits, tirx.reinterpret("int32", scaled) - root, of_bits(x, small, bits))

    return _let(x, of)


def _log_of(x: Expr, r: Expr, square: Expr, n: Expr) -> Expr:
    """Return log(1 + r) + n * log(2), or what a logarithm is of 0, of infinity, and of what has none.

    Nothing has a name inside of a choice: TVM's passes visit it twice.
    """
    coefficients = (
        7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
    )  # fmt: skip
    small = _polynomial(r, coefficients) * r * square + n * _c(-2.12194440e-4) - _c(0.5) * square
    inf = float("inf")
    special = tirx.Select(x > _c(0.0), x, tirx.Select(x == _c(0.0), _c(-inf), _c(float("nan"))))
    return tirx.Select(tirx.all(x > _c(0.0), x < _c(inf)), r + small + n * _c(0.693359375), special)


def power(x: Expr, exponent: Expr) -> Expr:
    """x**exponent; quarters by square roots, as in a local response normalization."""
    by_roots: dict[float, Callable[[Expr], Expr]] = {
        0.5: tirx.sqrt,
        0.75: lambda x: _let(tirx.sqrt(x), lambda root: root * tirx.sqrt(root)),
        2.0: lambda x: x * x,
        3.0: lambda x: x * x * x,
        -0.5: lambda x: _c(1.0) / tirx.sqrt(x),
    }
    known = float(exponent.value) if type(exponent).__name__ == "FloatImm" else None
    if known in by_roots:
        return _let(x, by_roots[known])
    return tirx.pow(x, exponent)


_FLOAT32: dict[str, Callable[..., Expr]] = {
    "exp": exp,
    "sigmoid": sigmoid,
    "tanh": tanh,
    "erf": erf,
    "log": log,
    "pow": power,
}
