# SPDX-License-Identifier: Apache-2.0
"""Weights side by side, which are read when somebody asks for them where they themselves are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_graphsurgeon as gs
from onnx import TensorProto

from .deferred_data import DeferredData
from .weights import HeldValues

Shapes = Sequence[tuple[int, ...]]


def join_columns(name: str, constants: Sequence[gs.Constant]) -> gs.Constant:
    """A constant of that name with the columns [...,N] of constants of one type; deferred where all of these are."""
    lazy_values = [item._values for item in constants if isinstance(item._values, HeldValues)]
    sources = [item.source for item in lazy_values if isinstance(item.source, DeferredData)]
    if len(sources) != len(constants):
        return gs.Constant(name, np.concatenate([item.values for item in constants], axis=-1))
    shapes = [tuple(int(size) for size in item.shape) for item in constants]
    width = sum(shape[-1] for shape in shapes)
    message = TensorProto(data_type=lazy_values[0].message.data_type, dims=[*shapes[0][:-1], width])
    return gs.Constant(name, HeldValues(message, _join(sources, shapes)))


def zeros_for(weight: gs.Constant) -> gs.Constant:
    """A bias [N] of zeros for a weight [K,N], in its type."""
    return gs.Constant(f"zeros_for_{weight.name}", np.zeros(weight.shape[-1], weight.dtype))


def _join(sources: Sequence[DeferredData], shapes: Shapes) -> DeferredData:
    kinds = set.intersection(*(set(item.narrow) for item in sources))
    narrow = {kind: _join([item.narrow[kind] for item in sources], shapes) for kind in kinds}
    return DeferredData(sum(item.size for item in sources), partial(_read, sources, shapes), narrow)


def _read(sources: Sequence[DeferredData], shapes: Shapes) -> npt.NDArray[Any]:
    """The bits of all columns, whatever their type."""
    parts = [
        np.frombuffer(item.data(), f"u{item.size // math.prod(shape)}").reshape(shape)
        for item, shape in zip(sources, shapes, strict=True)
    ]
    return np.concatenate(parts, axis=-1)
