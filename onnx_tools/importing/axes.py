# SPDX-License-Identifier: Apache-2.0
"""Checks that the inputs [B,S] of a file all have the same batch and sequence, which its names alone do not tell.

Exporters may give equal axes different names, or none, and a file may have a second sequence under any name. So inputs
whose names differ are tried: if the file runs when they have other sizes than the rest, they have another axis.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import onnx_graphsurgeon as gs
import onnxruntime as ort
from onnx import ModelProto, helper

from ..analysis import inline_constants
from ..analysis.special_ids import special_ids
from ..errors import RewriteError
from ..files import Model, copy_message, open_session
from .inputs import (
    axis_groups,
    inputs_of_own_axis,
    mark_rows,
    sequence_inputs_of,
    shared_inputs_of,
    token_inputs_of,
    unclear_inputs,
)

_SIZES = (3, 5)  # of batch and sequence; neither is 1, which would broadcast
_OTHERS = ((5, 2), (7, 3))  # sizes that another batch or sequence is tried with: a longer one, and a shorter one
_NAMES = ("batch", "sequence")
_MOST_GROUPS = 8  # inputs with more names than this are not tried

Sizes = Mapping[str, tuple[int, int]]


def check_axes(model: Model, token_inputs: Sequence[str]) -> None:
    """Raises RewriteError where token inputs have other batches or sequences than the rest."""
    names = [axis_groups(model.proto, token_inputs, axis) for axis in (0, 1)]
    model.weights.align()
    trial = _Trial(model, token_inputs, sequence_inputs_of(model.proto))
    if not trial.runs({}):
        return  # a file that onnxruntime does not run tells nothing; its verification says why
    for axis in (1, 0):
        groups = names[axis] if len(names[axis]) <= _MOST_GROUPS else []
        for count in range(1, len(groups)):
            for others in combinations(groups[1:], count):
                apart = [name for group in others for name in group]
                if all(trial.runs({name: _with(axis, size) for name in apart}) for size in _OTHERS[axis]):
                    raise _different(model.proto, token_inputs, apart, axis)


def with_rows_marked(model: Model) -> Model:
    """The model with inputs [B,N] of several integers marked as rows of sequences where they are not tokens.

    Their N may be the length that a file fixes for its tokens, or have another name than the tokens' length. Running
    the file shows whether it is another size; rows whose N is open get one number.
    """
    names = (*_rows_beside_tokens(model), *_rows_on_their_own_axis(model))
    if not names:
        return model
    proto = copy_message(model.proto)
    mark_rows(proto, names)
    return model.with_proto(proto)


def _rows_beside_tokens(model: Model) -> tuple[str, ...]:
    """Inputs of fixed N that are not tokens: the file runs with tokens of another length."""
    names = unclear_inputs(model.proto)
    if not names:
        return ()
    model.weights.align()
    dims = {value.name: value.type.tensor_type.shape.dim for value in model.proto.graph.input}
    rows = {name: tuple(dim.dim_value for dim in dims[name][1:]) for name in names}
    tokens = [name for name in token_inputs_of(model.proto) if name not in names]
    trial = _Trial(model, tokens, {**sequence_inputs_of(model.proto, unclear=True), **rows})
    longer = max(size for (size,) in rows.values()) + 2
    return names if trial.runs({name: _with(1, longer) for name in tokens}) else ()


def _rows_on_their_own_axis(model: Model) -> tuple[str, ...]:
    """Inputs of open N that are not tokens: the file runs with one number per sequence, and with several."""
    names = inputs_of_own_axis(model.proto)
    if not names:
        return ()
    model.weights.align()
    trial = _Trial(model, token_inputs_of(model.proto), sequence_inputs_of(model.proto))
    sizes = (1, *(size for size in _OTHERS[1]))
    return tuple(name for name in names if all(trial.runs({name: _with(1, size)}) for size in sizes))


def _with(axis: int, size: int) -> tuple[int, int]:
    return (size, _SIZES[1]) if axis == 0 else (_SIZES[0], size)


class _Trial:
    """Runs a file with inputs of chosen sizes."""

    def __init__(self, model: Model, token_inputs: Sequence[str], rows: Mapping[str, tuple[int, ...]]) -> None:
        self._session: ort.InferenceSession | None
        try:
            self._session = open_session(model, optimize=False)
        except Exception:  # onnxruntime's exceptions share no base class of their own
            self._session = None
        self._inputs = {
            value.name: (
                helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type),
                [dim.dim_value or None for dim in value.type.tensor_type.shape.dim],
            )
            for value in model.proto.graph.input
            if value.name in token_inputs
        }
        shapes = {name: (_SIZES[0], *trailing) for name, trailing in rows.items()} | shared_inputs_of(model.proto)
        self._others = {
            value.name: (helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type), shapes[value.name])
            for value in model.proto.graph.input
            if value.name in shapes
        }
        self._values: Mapping[str, int] | None = None  # what the inputs hold in the first run that succeeded
        self._model = model

    def runs(self, sizes: Sizes) -> bool:
        """Whether the file runs with these sizes for some inputs, and the usual ones for the others."""
        if self._session is None:
            return False
        for values in self._trial_values() if self._values is None else (self._values,):
            feeds = {name: np.full(shape, values[name]).astype(dtype) for name, (dtype, shape) in self._others.items()}
            for name, (dtype, dims) in self._inputs.items():
                trial_sizes = sizes.get(name, _SIZES)
                shape = [dim or size for size, dim in zip((*trial_sizes, 0), dims, strict=False)]
                feeds[name] = np.full(shape, values[name]).astype(dtype)
            if _succeeds(self._session, feeds):
                self._values = values
                return True
        return False

    def _trial_values(self) -> Iterator[dict[str, int]]:
        """The values that inputs may hold, by name, to be tried in this order."""
        for value in (1, 0):
            yield dict.fromkeys((*self._inputs, *self._others), value)
        ids = _ids_to_collect(self._model)
        if ids:
            yield dict.fromkeys((*self._inputs, *self._others), 1) | ids


def _ids_to_collect(model: Model) -> dict[str, int]:
    """By input, an id whose tokens the model collects: without it there is nothing to collect."""
    graph = gs.import_onnx(model.proto)
    inline_constants(graph)
    return {name: item.markers[0] for name, item in special_ids(graph).items() if item.markers}


def _succeeds(session: ort.InferenceSession, feeds: Mapping[str, np.ndarray]) -> bool:
    try:
        session.run(None, dict(feeds))
    except Exception:  # onnxruntime's exceptions share no base class of their own
        return False
    return True


def _different(model: ModelProto, token_inputs: Sequence[str], apart: Sequence[str], axis: int) -> RewriteError:
    dims = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    shapes_text = {
        name: f"'{name}' [{', '.join(dim.dim_param or str(dim.dim_value or '?') for dim in dims[name])}]"
        for name in token_inputs
    }
    rest = [name for name in token_inputs if name not in apart]
    texts = [", ".join(shapes_text[name] for name in names) for names in (rest, apart)]
    return RewriteError(
        f"the inputs have different axes: the {_NAMES[axis]} of {texts[1]} differs from that of {texts[0]}, for the "
        "model runs with other sizes there; padfree packs inputs that hold one value for every token of the same "
        "sequences; export the encoder with its token inputs alone"
    )
