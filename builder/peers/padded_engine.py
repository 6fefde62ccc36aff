# SPDX-License-Identifier: Apache-2.0
"""Builds the original, padded model with TensorRT alone, the peer that padfree is measured against."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import onnx
from padfree.contract.names import FORMAT, PER_SEQUENCE
from padfree.onnx_tools import load_model, standard_model
from padfree.onnx_tools.importing import sequence_inputs_of, shared_inputs_of
from padfree.runtime import parse_metadata
from rich.progress import Progress

from ..engine.build import check_plan_destinations
from ..engine.engine_builder import DEFAULT_CACHE, EngineBuilder, TacticOptions
from ..engine.linear import SEPARATE, TENSORRT
from ..engine.plan_writing import write_plan
from ..engine.profile import ProfileOptions, choose_profile, shape_ranges
from ..errors import BuildError

Typing = Literal["weak", "strong"]

FP16_FLAG = "FP16"


def to_fp16(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with weights and activations in fp16 and the original's input and output types."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    converted: onnx.ModelProto = convert_float_to_float16(copy, keep_io_types=True)
    return converted


def build_padded_engine(
    model: str | Path | onnx.ModelProto,
    plan_path: str | Path,
    *,
    max_batch: int,
    max_seq_len: int,
    typing: Typing = "strong",
    convert: Callable[[onnx.ModelProto], onnx.ModelProto] = to_fp16,
    timing_cache: str | Path | None = DEFAULT_CACHE,
    device: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Builds an exported model, as it is, in fp16; Session runs the plan like any padded engine.

    onnxruntime's fused operators, which TensorRT does not know, are replaced by standard ones.

    Args:
        model: an exported encoder with ids and mask [B, S].
        plan_path: where the plan goes; its metadata goes beside it.
        max_batch: most sequences in one run, and what TensorRT tunes for.
        max_seq_len: longest sequence in one run, and what TensorRT tunes for.
        typing: "weak" lets TensorRT 10 choose between fp16 and fp32 layer by layer; "strong" converts the graph to
            fp16 first, the only way in TensorRT 11.
        convert: what "strong" does to the graph of standard operators.
        timing_cache: as build_engine.
        device: CUDA device number.
        progress: rich bars that show the build's phases.

    Returns:
        The metadata written beside the plan.

    Raises:
        BuildError: as build_engine; also "weak" on TensorRT 11.
    """
    path = Path(plan_path)
    check_plan_destinations([(model, path)], timing_cache)
    original = standard_model(load_model(model) if isinstance(model, (str, Path)) else model)
    raw = padded_metadata(original)
    metadata = parse_metadata(raw, "the original model")
    profile = choose_profile(metadata, ProfileOptions(max_batch=max_batch, max_seq_len=max_seq_len))
    builder = EngineBuilder(device, TacticOptions(timing_cache=timing_cache), progress)
    ranges = shape_ranges(metadata, profile)
    if typing == "strong":
        engine = builder.build(convert(original), ranges)
    elif builder.has_flag(FP16_FLAG):
        engine = builder.build(original, ranges, strongly_typed=False, builder_flags=(FP16_FLAG,))
    else:
        raise BuildError(
            f"typing 'weak' needs TensorRT 10, this is {builder.tensorrt_version}, which knows strongly typed networks "
            "only; pass typing='strong'"
        )
    return write_plan(path, engine, raw, profile, builder, {"linear": TENSORRT, "norms": SEPARATE})


def padded_metadata(model: onnx.ModelProto, mask: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The metadata of an original model, read off its inputs and outputs: int inputs [B, S], and rows of sequences.

    `mask` is the mask of its rewriting's metadata; without it, the mask is told by its name.

    Raises:
        BuildError: an input is not a grid of integers, or there is no mask.
    """
    inputs: list[dict[str, Any]] = []
    sequence_axes: set[str] = set()
    rows, shared_names = sequence_inputs_of(model), shared_inputs_of(model)
    for value in model.graph.input:
        if value.name in {initializer.name for initializer in model.graph.initializer}:
            continue
        tensor = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name
        if value.name in rows:
            lengths = mask is not None and mask.get("lengths", False) and mask["input"] == value.name
            role = "seq_lens" if lengths else PER_SEQUENCE
            inputs.append(_input(value.name, role, dtype, rows[value.name]))
            continue
        if value.name in shared_names:
            inputs.append({**_input(value.name, PER_SEQUENCE, dtype, shared_names[value.name]), "shared": True})
            continue
        is_mask = "mask" in value.name if mask is None else mask["plain"] and mask["input"] == value.name
        dtypes = ("int32", "int64", "bool", "float32") if is_mask else ("int32", "int64")
        if len(tensor.shape.dim) != 2 or dtype not in dtypes:
            raise BuildError(
                f"input '{value.name}' is {dtype} of rank {len(tensor.shape.dim)}, allowed: integer grids [B, S]; "
                "export the encoder with ids and attention mask as its inputs"
            )
        sequence_axes.add(tensor.shape.dim[1].dim_param)
        role = "mask" if is_mask else "tokens"
        inputs.append(_input(value.name, role, dtype))
    if mask is None and not any(item["role"] == "mask" for item in inputs):
        raise BuildError("the model has no mask input; export it with attention_mask, padding cannot be told otherwise")
    return {
        "format": FORMAT,
        "version": "original",
        "interface": "padded",
        "precision": "fp16",
        "inputs": inputs,
        "outputs": [_padded_output(value, sequence_axes) for value in model.graph.output],
        **({} if mask is None else {"mask": dict(mask)}),
        "max_positions": None,
        "hidden_size": None,
        "num_layers": 0,
        "coverage": {},
        "plugins": {},
    }


def _input(name: str, role: str, dtype: str, trailing_shape: Sequence[int] = ()) -> dict[str, Any]:
    """An input's entry; the numbers of a sequence are its width, if there is an axis of them."""
    width = {"width": trailing_shape[0]} if trailing_shape else {}
    return {"name": name, "role": role, "limit": None, "dtype": dtype, **width}


def _padded_output(value: onnx.ValueInfoProto, sequence_axes: Collection[str]) -> dict[str, Any]:
    """[B, S, ...] has two dynamic axes, [B, E] one; exporters invent a name for E where they do not know its size."""
    dims = value.type.tensor_type.shape.dim
    is_open = len(dims) > 1 and not dims[1].HasField("dim_value")
    is_sequence = is_open and (len(dims) > 2 or dims[1].dim_param in {"", *sequence_axes})
    layout = "padded" if is_sequence else "per_sequence"
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name
    shape = [dim.dim_value or None for dim in dims]
    return {"name": value.name, "layout": layout, "dtype": dtype, "shape": shape}
