# SPDX-License-Identifier: Apache-2.0
"""Tells what the inputs of an exported model hold: values of tokens, sequences, or the batch; others are refused."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import onnx
from onnx import ModelProto, TensorProto, ValueInfoProto

from ..errors import RewriteError
from ..files import fed_inputs
from .fixed_axes.sizes import EXPORT_AGAIN

_INPUT_TYPES = frozenset(
    getattr(TensorProto, f"{sign}INT{bits}") for sign in ("", "U") for bits in (8, 16, 32, 64)
) | {TensorProto.BOOL, TensorProto.FLOAT}  # fmt: skip

_ROW = "padfree.row "  # begins the denotation of a row's axis; the name that the axis had follows


def token_inputs_of(model: ModelProto) -> tuple[str, ...]:
    """The names of the inputs [B,S], of which floats may be masks, and [B,S,N], of N numbers per token.

    Raises RewriteError for inputs that are neither these nor of sequences or batches, or if no input is [B,S].
    """
    values = fed_inputs(model)
    tokens = [value for value in values if not _is_of_sequences(value, values) and not _is_shared(value, values)]
    for value in tokens:
        _check(value)
    if not any(len(_dims(value)) == 2 for value in tokens):
        raise RewriteError("no attention found: the model has no input; padfree rewrites encoders with token inputs")
    return tuple(value.name for value in tokens)


def unclear_inputs(model: ModelProto) -> tuple[str, ...]:
    """The inputs [B,N] of N integers, next to token inputs of open length, that may be tokens or rows of sequences."""
    values = fed_inputs(model)
    is_open = any(len(_dims(item)) == 2 and not _dims(item)[1].dim_value for item in values)
    return tuple(
        value.name
        for value in values
        if is_open
        and len(_dims(value)) == 2
        and _dims(value)[1].dim_value > 1
        and not _dims(value)[0].dim_value
        and not _is_of_sequences(value, values)
    )


def inputs_of_own_axis(model: ModelProto) -> tuple[str, ...]:
    """The inputs [B,N] of integers whose N is open and has a name of its own, where other inputs share a name."""
    values = [value for value in fed_inputs(model) if len(_dims(value)) == 2 and _dims(value)[1].dim_param]
    names = [_dims(value)[1].dim_param for value in values]
    if max(map(names.count, names), default=0) < 2:
        return ()
    floats = TensorProto.FLOAT
    alone = [value for value, name in zip(values, names, strict=True) if names.count(name) == 1]
    return tuple(value.name for value in alone if value.type.tensor_type.elem_type != floats)


def axis_groups(model: ModelProto, token_inputs: Sequence[str], axis: int) -> list[list[str]]:
    """The inputs grouped by the name of an axis, without a name each for itself; no fixed axes, no unread inputs."""
    input_names = {name for node in model.graph.node for name in node.input}
    groups: dict[str, list[str]] = {}
    for value in model.graph.input:
        if value.name in token_inputs and value.name in input_names:
            dim = _dims(value)[axis]
            if not dim.HasField("dim_value"):
                groups.setdefault(dim.dim_param or f"?{value.name}", []).append(value.name)
    return list(groups.values())


def may_hold_rows(model: ModelProto) -> bool:
    """Whether inputs [B,N] of several integers may be rows of sequences and not tokens."""
    return bool(unclear_inputs(model) or inputs_of_own_axis(model))


def mark_rows(model: ModelProto, names: Collection[str]) -> None:
    """Marks inputs [B,N], in place, as having a row for every sequence: of one number where N is open."""
    for value in model.graph.input:
        if value.name in names and len(_dims(value)) == 2:
            axis = _dims(value)[1]
            axis.denotation = f"{_ROW}{axis.dim_param}"
            if not axis.dim_value:
                axis.dim_value = 1


def rows_of_one_number(model: ModelProto) -> dict[str, str]:
    """The inputs whose open N was taken to be 1, with the name that the axis had."""
    axes = {value.name: _dims(value)[1] for value in fed_inputs(model) if len(_dims(value)) == 2}
    names = {name: axis.denotation.removeprefix(_ROW) for name, axis in axes.items() if _is_row(axis.denotation)}
    return {name: axis for name, axis in names.items() if axis}


def sequence_inputs_of(model: ModelProto, *, unclear: bool = False) -> dict[str, tuple[int, ...]]:
    """The inputs with a row for every sequence, [B] or [B,N]: the sizes of their axes after the batch.

    Raises RewriteError where token inputs fix sizes, except with `unclear`.
    """
    values = fed_inputs(model)
    sequence_inputs = {
        value.name: tuple(int(dim.dim_value) for dim in _dims(value)[1:])
        for value in values
        if _is_of_sequences(value, values)
    }
    fixed_input = next((value for value in values if value.name not in sequence_inputs and _is_fixed(value)), None)
    if sequence_inputs and fixed_input is not None and not unclear:
        raise RewriteError(
            f"input '{next(iter(sequence_inputs))}' has one value for every sequence, and '{fixed_input.name}' "
            f"{_shape(fixed_input)} has fixed sizes; {EXPORT_AGAIN}"
        )
    return sequence_inputs


def shared_inputs_of(model: ModelProto) -> dict[str, tuple[int, ...]]:
    """The inputs that are the same for a whole batch, [] or [N], with their shapes."""
    values = fed_inputs(model)
    return {
        value.name: tuple(int(dim.dim_value) for dim in _dims(value)) for value in values if _is_shared(value, values)
    }


def numbers_of(value: ValueInfoProto) -> tuple[int, ...]:
    """How many numbers an input has for each token: () for one, such as ids, (N,) for an input [B,S,N]."""
    return tuple(int(dim.dim_value) for dim in _dims(value)[2:])


def _is_of_sequences(value: ValueInfoProto, values: Sequence[ValueInfoProto]) -> bool:
    """Whether an input has one axis, the batch, or a second one of fixed size where that of tokens is open.

    A single number is such a row, and so are several floats; several integers are not, as a file may fix the length of
    only one of its token inputs.
    """
    dims = _dims(value)
    if value.type.tensor_type.elem_type not in _INPUT_TYPES or not dims or dims[0].dim_value == 1:
        return False
    if len(dims) == 1:
        return not dims[0].dim_value
    if len(dims) != 2 or not dims[1].dim_value or dims[0].dim_value:
        return False
    if _is_row(dims[1].denotation):
        return True
    single, floats = dims[1].dim_value == 1, value.type.tensor_type.elem_type == TensorProto.FLOAT
    return (single or floats) and any(len(_dims(item)) == 2 and not _dims(item)[1].dim_value for item in values)


def _is_shared(value: ValueInfoProto, values: Sequence[ValueInfoProto]) -> bool:
    """Whether an input has no axis, or one of fixed size that is not the batch, as batches are open."""
    dims = _dims(value)
    if value.type.tensor_type.elem_type not in _INPUT_TYPES or not value.type.tensor_type.HasField("shape"):
        return False
    if len(dims) > 1 or not all(dim.dim_value for dim in dims):
        return False
    return not any(len(_dims(item)) > 1 and _is_fixed(item) and not _is_of_sequences(item, values) for item in values)


def _is_fixed(value: ValueInfoProto) -> bool:
    return any(dim.dim_value for dim in _dims(value)[:2])


def _check(value: ValueInfoProto) -> None:
    """Raises RewriteError for an input that is not a token input."""
    tensor, dims = value.type.tensor_type, _dims(value)
    has_values = len(dims) == 3 and dims[2].dim_value > 0
    is_known = tensor.elem_type in _INPUT_TYPES
    if is_known and (len(dims) == 2 or has_values):
        return
    kind = f"input '{value.name}' is {TensorProto.DataType.Name(tensor.elem_type)} {_shape(value)}"
    if is_known and all(dim.dim_value for dim in dims):
        of_batch = "only values of at most one axis may be" if len(dims) > 1 else "the others fix sizes; it is"
        raise RewriteError(
            f"{kind}, and {of_batch} the same for a whole batch; bind it to a number: --fix {value.name}=NUMBER; or "
            "export the model with open axes, [batch, sequence] and [batch]"
        )
    raise RewriteError(
        f"{kind}; every input must be an integer or bool tensor [batch, sequence], or [batch, sequence, N] where N is "
        "a number, or have a row for every sequence, [batch] or [batch, N]; the mask, and inputs of several numbers a "
        "token or a sequence, as embeddings are, may be float32; export the encoder with such inputs and a mask "
        f"[batch, sequence] alone, or bind this one to a number: --fix {value.name}=NUMBER"
    )


def _dims(value: ValueInfoProto) -> Sequence[onnx.TensorShapeProto.Dimension]:
    dims: Sequence[onnx.TensorShapeProto.Dimension] = value.type.tensor_type.shape.dim
    return dims


def _shape(value: ValueInfoProto) -> str:
    return f"[{', '.join(_dim(dim) for dim in _dims(value))}]"


def _dim(dim: onnx.TensorShapeProto.Dimension) -> str:
    return dim.dim_param or str(dim.dim_value) if dim.WhichOneof("value") else "?"


def _is_row(denotation: str) -> bool:
    return denotation.startswith(_ROW)
