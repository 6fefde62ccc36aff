# SPDX-License-Identifier: Apache-2.0
"""What a comparison knows of the original model: its inputs, which of them is the mask, and its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import onnx
from padfree.contract.metadata import InputInfo
from padfree.onnx_tools import load_model, save_model
from padfree.onnx_tools.analysis import BATCH, SLOTS, Dims, padded_dims
from padfree.onnx_tools.files import Model, is_rewritten
from padfree.onnx_tools.importing import (
    bind_inputs,
    mark_rows,
    numbers_of,
    sequence_inputs_of,
    shared_inputs_of,
    token_inputs_of,
)
from padfree.onnx_tools.importing.fixed_axes import FixedSizes, fixed_sizes
from padfree.onnx_tools.importing.quantized import holds_quantization, standard_rounding, without_rounding
from padfree.onnx_tools.precision import widen
from padfree.runtime import Metadata, parse_metadata

from ..errors import BuildError
from ..peers.padded_engine import padded_metadata

WIDENED, ROUNDED, FLOAT = COPIES = ("fp32", "rounded", "float")
"""Of a half precision or quantised original, in fp32; of a quantised one, as it rounds, and with float weights."""


@dataclass(frozen=True)
class Input:
    """One input [B, S] of the original, or [B, S, N] of N numbers per token, whose sizes are `trailing_shape`.

    One of sequences is [B], or [B, N]; one that they share is [] or [N]. Ids are 0..limit-1, without `excluded_ids`
    among valid tokens; embeddings are any numbers.
    """

    name: str
    dtype: str
    limit: int | None
    excluded_ids: tuple[int, ...] = ()
    trailing_shape: tuple[int, ...] = ()
    holds_floats: bool = False
    of_sequences: bool = False
    shared: bool = False

    def shape(self, *grid: int) -> tuple[int, ...]:
        """The input's shape in a batch of this grid, B and S."""
        return (*(() if self.shared else grid[:1] if self.of_sequences else grid), *self.trailing_shape)


@dataclass(frozen=True)
class Rounding:
    """What is rounded in a quantised original, and not in the reference: `path` is the file with it, in fp32."""

    path: Path
    types: tuple[str, ...]
    activations: int


@dataclass(frozen=True)
class Original:
    """The reference: what was given, in fp32, and without the rounding of activations of a quantised file.

    exported: what the rewriter is given.
    rounding: of a quantised file.
    metadata: of a model rewritten from it; what the token inputs are and which values they may have.
    rows: the inputs that have a row for every sequence.
    unread_inputs: the inputs that nothing reads.
    mask: the input that is the mask alone, or the lengths in its place; None where a token input tells what is padding,
        as ids do, or none does.
    layouts: output name -> "per_sequence" for [B, ...], anything else for numbers of slots.
    dims: output name -> sizes of its axes; which of its numbers belong to tokens follows from them.
    sizes: batch and sequence where the file fixes them.
    """

    path: Path
    model: onnx.ModelProto
    exported: onnx.ModelProto
    rounding: Rounding | None
    metadata: Metadata
    tokens: tuple[Input, ...]
    rows: tuple[Input, ...]
    unread_inputs: tuple[Input, ...]
    mask: Input | None
    layouts: dict[str, str]
    dims: dict[str, Dims | None]
    sizes: FixedSizes

    @property
    def inputs(self) -> tuple[Input, ...]:
        """All inputs, the mask last."""
        return (*self.tokens, *self.rows, *self.unread_inputs, *([] if self.mask is None else [self.mask]))

    @property
    def has_mask(self) -> bool:
        """Whether any input tells what is padding."""
        return self.metadata.mask.input is not None

    @property
    def is_left_padded(self) -> bool:
        """Whether it is only right where padding lies before the tokens; the rewriter finds that out."""
        return bool(self.metadata.raw.get("coverage", {}).get("left_padded_because"))

    def has_token_rows(self, output: str) -> bool:
        """Whether an output has a row for every token: [B, S, ...]."""
        dims = self.dims[output] or ()
        return dims[:2] == (BATCH, SLOTS) and not any(isinstance(size, str) for size in dims[2:])


def copy_name(path: Path, kind: str) -> str:
    """The file of one of an original's COPIES."""
    return f"{path.stem}.{kind}.onnx"


def check_original(path: Path, model: onnx.ModelProto) -> None:
    """Raises BuildError for a model that has been rewritten."""
    if is_rewritten(model):
        raise BuildError(
            f"{path}: has been rewritten, and the first model is the original: padfree compare ORIGINAL {path.name}"
        )


def describe_original(path: Path, candidates: Sequence[Metadata], folder: Path) -> Original:
    """Reads the original; what its inputs mean follows from what it was rewritten to.

    Args:
        path: the exported model.
        candidates: metadata of models rewritten from it.
        folder: for the copy in fp32 of a model in half precision or a quantised one, which is then the reference.

    Raises:
        BuildError: it has been rewritten; other inputs are left than the mask; the models have no output in common.
    """
    proto = source_model = load_model(path)
    check_original(path, proto)
    names = {value.name for value in proto.graph.input}
    fixed: Mapping[str, int | float] = candidates[0].raw.get("fixed", {}) if candidates else {}
    bindings = {name: value for name, value in fixed.items() if name in names}
    proto = bind_inputs(proto, bindings) if bindings else proto
    model, rounding = _reference(proto, path, folder)
    if model is not source_model:
        path = folder / copy_name(path, WIDENED)
        save_model(model, path)
    weights = {tensor.name for tensor in model.graph.initializer}
    types = {
        value.name: str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)
        for value in model.graph.input
        if value.name not in weights
    }
    own_metadata = candidates[0] if candidates else parse_metadata(padded_metadata(model), str(path))
    tokens = _inputs(types, own_metadata.token_inputs())
    rows = _inputs(types, own_metadata.sequence_inputs(), of_sequences=True)
    mark_rows(model, [item.name for item in rows])
    unread_inputs = _unread_inputs(model, own_metadata)
    unread_names = {item.name for item in unread_inputs}
    tokens, rows = (tuple(item for item in items if item.name not in unread_names) for items in (tokens, rows))
    expected_names = [item.original_name for item in (*own_metadata.token_inputs(), *own_metadata.sequence_inputs())]
    expected_names = [*(name for name in expected_names if name not in unread_names), *unread_names]
    masks = [name for name in types if name not in expected_names]
    alone = own_metadata.mask.input is not None and own_metadata.mask.input not in expected_names
    if len(masks) != int(alone) or len(tokens) + len(rows) + len(unread_inputs) != len(expected_names):
        raise BuildError(
            f"{path}: has inputs {', '.join(types)}, the model to compare has token inputs "
            f"{', '.join(expected_names)}; the original must have those"
            f"{' and one mask' if alone else ''}: compare a model with the one that it was made from"
        )
    names_of_outputs = [value.name for value in model.graph.output]
    layouts = {item.name: item.layout for item in own_metadata.outputs if item.name in names_of_outputs}
    if not layouts:
        raise BuildError(
            f"{path}: has outputs {', '.join(names_of_outputs)}, the model to compare "
            f"{', '.join(item.name for item in own_metadata.outputs)}; none is in both: compare "
            "a model with the one that it was made from"
        )
    mask = _mask(model, masks[0], types[masks[0]], own_metadata) if alone else None
    items = {item["name"]: item for item in own_metadata.raw["outputs"]}
    dims = {name: padded_dims(items[name]) for name in layouts}
    sizes = fixed_sizes(model, token_inputs_of(model))
    return Original(path, model, proto, rounding, own_metadata, tokens, rows, unread_inputs, mask, layouts, dims, sizes)


def _mask(model: onnx.ModelProto, name: str, dtype: str, own_metadata: Metadata) -> Input:
    """The mask, or the input of lengths that stands for it."""
    trailing_shape = sequence_inputs_of(model)[name] if own_metadata.mask.lengths else ()
    return Input(name, dtype, None, trailing_shape=trailing_shape, of_sequences=own_metadata.mask.lengths)


def _unread_inputs(model: onnx.ModelProto, own_metadata: Metadata) -> tuple[Input, ...]:
    """The inputs that nothing reads."""
    names, rows, shared_names = own_metadata.raw.get("unread", ()), sequence_inputs_of(model), shared_inputs_of(model)
    inputs = []
    for value in model.graph.input:
        if value.name in names:
            dtype = str(onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name)
            trailing_shape = (
                {**rows, **shared_names}[value.name] if value.name in {**rows, **shared_names} else numbers_of(value)
            )
            is_row, is_shared = value.name in rows, value.name in shared_names
            item = Input(value.name, dtype, None, trailing_shape=trailing_shape, of_sequences=is_row or is_shared)
            inputs.append(replace(item, shared=is_shared))
    return tuple(inputs)


def _inputs(types: Mapping[str, str], items: Iterable[InputInfo], *, of_sequences: bool = False) -> tuple[Input, ...]:
    """The original's inputs that `items` of a rewritten model stand for, in the original's order; `types` by name."""
    inputs_by_name = {item.original_name: item for item in items}
    return tuple(
        Input(
            name,
            dtype,
            item.limit,
            item.excluded,
            item.trailing_shape,
            item.holds_floats,
            of_sequences,
            item.shared,
        )
        for name, dtype, item in ((name, dtype, inputs_by_name.get(name)) for name, dtype in types.items())
        if item is not None
    )


def _reference(proto: onnx.ModelProto, path: Path, folder: Path) -> tuple[onnx.ModelProto, Rounding | None]:
    """What is compared with, and what it leaves out of a quantised file; weights stay as the file has them."""
    model = standard_rounding(proto)
    unrounded = without_rounding(Model(model)) if holds_quantization(model) else None
    if unrounded is None or not unrounded.activations:
        return widen(Model(model)).proto, None
    rounded = folder / copy_name(path, ROUNDED)
    save_model(widen(Model(model)).proto, rounded)
    return widen(unrounded.model).proto, Rounding(rounded, unrounded.activation_types, unrounded.activations)
