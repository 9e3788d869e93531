# SPDX-License-Identifier: Apache-2.0
"""Compare arrays with a reference and name the element that is furthest off.

An element agrees when ``|actual - expected| <= atol + rtol * |expected|``; NaN agrees with NaN, infinity with the
same infinity. Without tolerances given, the element type decides; whole numbers must be equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Bits of the significand that are trusted: (rtol, atol) by the size of an element.
TOLERANCES = {1: (0.2, 0.1), 2: (2e-2, 2e-3), 4: (1e-4, 1e-5), 8: (1e-7, 1e-9)}


@dataclass(frozen=True)
class ArrayComparison:
    """How one array differs from its reference.

    Attributes:
        name: the array's name.
        ok: every element agrees.
        message: one line; with the worst element where they differ.
        largest_error: the largest difference; None where the arrays cannot be compared.
    """

    name: str
    ok: bool
    message: str
    largest_error: float | None = None


def compare_arrays(
    name: str,
    actual: np.ndarray[Any, Any],
    expected: np.ndarray[Any, Any],
    rtol: float | None = None,
    atol: float | None = None,
) -> ArrayComparison:
    """Return how ``actual`` differs from ``expected``; a tolerance of None is chosen by the element type."""
    import numpy as np

    if actual.shape != expected.shape:
        shapes = f"has the shape {list(actual.shape)}, expected {list(expected.shape)}"
        return ArrayComparison(name, False, f"{name} {shapes}")
    if actual.dtype != expected.dtype:
        return ArrayComparison(name, False, f"{name} has elements of {actual.dtype}, expected {expected.dtype}")
    default_rtol, default_atol = tolerances(actual.dtype)
    rtol = default_rtol if rtol is None else rtol
    atol = default_atol if atol is None else atol
    limits = f"rtol {rtol:g}, atol {atol:g}"
    if actual.size == 0:
        return ArrayComparison(name, True, f"{name} agrees: it is empty", 0.0)
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    ours, theirs = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        same = (actual == expected) | (np.isnan(ours) & np.isnan(theirs))
        error = np.where(same, 0.0, np.abs(ours - theirs))
        error = np.where(np.isnan(error), np.inf, error)
        allowed = atol + rtol * np.abs(theirs)
        near = (error > 0) & (error <= allowed) & np.isfinite(allowed)  # 0: a difference lost by rounding
        wrong = ~same & ~near
        excess = np.where(wrong, error - np.where(np.isfinite(allowed), allowed, 0.0), -np.inf)
    largest = float(error.max())
    if not wrong.any():
        return ArrayComparison(name, True, f"{name} agrees within {limits}; largest difference {largest:.3g}", largest)
    worst = np.unravel_index(int(excess.argmax()), actual.shape)
    place = ",".join(str(int(axis)) for axis in worst)
    share = f"{int(wrong.sum())} of {actual.size} elements differ"
    return ArrayComparison(
        name,
        False,
        f"{name}[{place}] is {actual[worst]}, expected {expected[worst]} "
        f"(difference {float(error[worst]):.3g}, allowed {float(allowed[worst]):.3g}); {share} ({limits})",
        largest,
    )


def tolerances(dtype: np.dtype[Any]) -> tuple[float, float]:
    """Return (rtol, atol) for an element type: nothing for whole numbers."""
    if dtype.kind in "biu":
        return 0.0, 0.0
    return TOLERANCES.get(dtype.itemsize // (2 if dtype.kind == "c" else 1), TOLERANCES[8])
