# SPDX-License-Identifier: Apache-2.0
"""The constants of GEMMs that apply a layer norm, made from those of the GEMM and the norm."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import TensorProto

from ...analysis import Editor, once
from ...files import Floats, HeldValues, array_of, bytes_of_array, own_values
from ...match import NoMatch
from ...operators import ACT_TYPES
from ...precision import (
    exact_product,
    moved_to_keep_sums,
    on_all_cores,
    round_values,
    row_pieces,
    surely_fits,
    to_float,
    unfit_reason,
)

Doubles = npt.NDArray[np.float64]


class FoldedWeights:
    """Makes such constants for one graph of one precision, equal ones once."""

    def __init__(self, editor: Editor, precision: str) -> None:
        self._editor = editor
        self._precision = precision
        self._scaled: dict[tuple[str, str, bool], gs.Constant] = {}
        self._shifts: dict[tuple[str, str], Doubles] = {}

    def scale(self, weight: gs.Constant, gamma: gs.Constant, *, centred: bool) -> gs.Constant:
        """diag(gamma) weight [K,N] in the graph's type. Raises NoMatch where the type cannot hold it.

        Args:
            weight: [K,N].
            gamma: [K].
            centred: whether each column's mean is subtracted, and the column rounded so that its sum stays: a row's
                mean then adds nothing that counts to a product. Otherwise a product of two halves, which float32 holds
                exactly, is rounded once.
        """
        key = (weight.name, gamma.name, centred)
        if key not in self._scaled:
            values = None if centred else self._by_rows(weight, gamma)
            content = self._at_once(weight, gamma, centred=centred) if values is None else values
            self._scaled[key] = self._constant(f"{weight.name}_scaled", content)
        return self._scaled[key]

    def _by_rows(self, weight: gs.Constant, gamma: gs.Constant) -> HeldValues | None:
        """diag(gamma) weight in half precision, a few rows at a time; None where it may not fit, and in float32."""
        if self._precision == "fp32":
            return None
        numbers, factors = own_values(weight), values_of(gamma)[:, np.newaxis]
        result = np.empty(numbers.shape, np.uint16)

        def fill(rows: slice) -> bool:
            with np.errstate(over="ignore", invalid="ignore"):
                exact = to_float(numbers[rows]) * factors[rows]
                result[rows] = round_values(exact, self._precision).view(np.uint16)
                return surely_fits(exact, self._precision)

        if not all(on_all_cores(fill, row_pieces(numbers))):
            return None
        message = TensorProto(data_type=ACT_TYPES[self._precision], dims=result.shape)
        return HeldValues(message, bytes_of_array(result))

    def _at_once(self, weight: gs.Constant, gamma: gs.Constant, *, centred: bool) -> Floats | HeldValues:
        """diag(gamma) weight, in one piece. Raises NoMatch as `scale` does."""
        with np.errstate(over="ignore", invalid="ignore"):
            exact = values_of(weight) * values_of(gamma)[:, np.newaxis]
            if centred:
                exact -= exact.mean(axis=0, dtype=np.float64).astype(np.float32)
            centred_weights = (
                moved_to_keep_sums(exact, lambda weight: self._round(weight)[1], axis=0) if centred else exact
            )
            values, rounded = self._round(centred_weights)
        if unfit := unfit_reason(exact, self._precision, rounded=rounded) or self._not_finite(rounded):
            raise NoMatch(f"'{weight.name}' times '{gamma.name}' {unfit}")
        return values

    def bias(self, terms: Sequence[gs.Constant], weight: gs.Constant, beta: gs.Constant | None) -> gs.Constant | None:
        """The sum of terms [N] and beta weight, computed in float64; None where there is nothing to add.

        Raises NoMatch where the type cannot hold it.
        """
        if beta is None and len(terms) < 2:
            return terms[0] if terms else None
        total = sum((values_of(term).astype(np.float64) for term in terms), self._shift(weight, beta))
        stem = terms[0].name if terms else f"{weight.name}_bias"
        values, rounded = self._round(total.astype(np.float32))
        if unfit := self._not_finite(rounded):
            raise NoMatch(f"'{stem}', shifted, {unfit}")
        return self._constant(f"{stem}_shifted", values)

    def _shift(self, weight: gs.Constant, beta: gs.Constant | None) -> Doubles:
        """beta weight [N]; zeros without a beta."""
        if beta is None:
            return np.zeros(int(weight.shape[1]))
        key = (weight.name, beta.name)
        return once(self._shifts, key, lambda: exact_product(values_of(beta), values_of(weight)))

    def _round(self, exact: Floats) -> tuple[Floats | HeldValues, Floats]:
        """The values in the graph's type, and the numbers that they are then."""
        if self._precision == "fp32":
            return exact, exact
        message = TensorProto(data_type=ACT_TYPES[self._precision], dims=exact.shape)
        storage = HeldValues(message, bytes_of_array(round_values(exact, self._precision)))
        return storage, to_float(array_of(message, storage.data))

    def _not_finite(self, values: Floats) -> str:
        return "" if np.isfinite(values).all() else f"would hold numbers that {self._precision} cannot hold"

    def _constant(self, stem: str, values: Floats | HeldValues) -> gs.Constant:
        if isinstance(values, HeldValues):
            return gs.Constant(self._editor.fresh(stem), values)
        return self._editor.constant(stem, values)


def values_of(constant: gs.Constant) -> Floats:
    """A constant of any float type as float32; numpy has no bfloat16, so reading `values` would change the export."""
    return to_float(own_values(constant))
