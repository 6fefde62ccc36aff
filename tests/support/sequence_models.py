# SPDX-License-Identifier: Apache-2.0
"""Encoders that have, besides token inputs, inputs with one value per sequence or one for the whole batch."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

from .encoder import HIDDEN, VOCABULARY, EncoderBuilder

LANGUAGES, SOURCES, FEATURES = 5, 4, 3
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


def finish(
    builder: EncoderBuilder, inputs: Mapping[str, tuple[int, Sequence[Any]]], outputs: Mapping[str, Any]
) -> ModelProto:
    """The model with ids, mask and these inputs; `inputs` and `outputs` are name -> (type, shape)."""
    dims = ["batch", "sequence"]
    values = {"input_ids": (INT64, dims), "attention_mask": (INT64, dims), **inputs}
    graph = helper.make_graph(
        builder.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in values.items()],
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in outputs.items()],
        builder.constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def with_rows() -> ModelProto:
    """A language's row is added to every token, a source's and features to the vector, and ids pass through.

    Inputs: language [B], source [B,1], features [B,3] float, row_id [B]. Outputs: hidden [B,S,E], vector [B,E] and
    row_id_out [B].
    """
    b = EncoderBuilder()
    language = b.op("Unsqueeze", b.op("Gather", b.weight(LANGUAGES, HIDDEN), "language"), b.axes(1))
    x = b.layer(b.op("Add", b.embedding(), language), b.padding_mask())
    b.op("Identity", x, output="hidden")
    first = b.op("Gather", x, b.constant(0, np.int64), axis=1)
    source = b.op("Squeeze", b.op("Gather", b.weight(SOURCES, HIDDEN), "source"), b.axes(1))
    features = b.op("MatMul", "features", b.weight(FEATURES, HIDDEN))
    b.op("Add", b.op("Add", first, source), features, output="vector")
    b.op("Identity", "row_id", output="row_id_out")
    inputs = {
        "language": (INT64, ["batch"]),
        "source": (INT64, ["batch", 1]),
        "features": (FLOAT, ["batch", FEATURES]),
        "row_id": (INT64, ["batch"]),
    }
    outputs = {
        "hidden": (FLOAT, ["batch", "sequence", HIDDEN]),
        "vector": (FLOAT, ["batch", HIDDEN]),
        "row_id_out": (INT64, ["batch"]),
    }
    return finish(b, inputs, outputs)


def with_page() -> ModelProto:
    """An input [B,4] of four integers per sequence, like a page's box; each selects from a table of seven rows."""
    b = EncoderBuilder()
    rows = b.op("ReduceSum", b.op("Gather", b.weight(7, HIDDEN), "page"), b.axes(1), keepdims=1)
    b.op("Identity", b.layer(b.op("Add", b.embedding(), rows), b.padding_mask()), output="hidden")
    return finish(b, {"page": (INT64, ["batch", 4])}, {"hidden": (FLOAT, ["batch", "sequence", HIDDEN])})


def with_scalar(axes: int = 0) -> ModelProto:
    """A task's row, selected by one number for the whole batch, is added to every token. Output: hidden [B,S,E].

    `axes`: how many axes of size 1 the input has.
    """
    b = EncoderBuilder()
    task = b.op("Gather", b.weight(LANGUAGES, HIDDEN), b.op("Reshape", "task", b.axes()))
    b.op("Identity", b.layer(b.op("Add", b.embedding(), task), b.padding_mask()), output="hidden")
    return finish(b, {"task": (INT64, [1] * axes)}, {"hidden": (FLOAT, ["batch", "sequence", HIDDEN])})


def with_shared() -> ModelProto:
    """Four inputs with one value for the whole batch, which meet tokens and vectors in every possible way.

    Inputs: task [], which selects from a table, factor [1] float, features [3] float, turned [] bool. Outputs:
    hidden [B,S,E], vector [B,E].
    """
    b = EncoderBuilder()
    task = b.op("Gather", b.weight(LANGUAGES, HIDDEN), "task")
    x = b.layer(b.op("Add", b.embedding(), task), b.padding_mask())
    scaled = b.op("Mul", x, "factor")
    b.op("Where", "turned", b.op("Neg", scaled), scaled, output="hidden")
    first = b.op("Gather", "hidden", b.constant(0, np.int64), axis=1)
    b.op("Add", first, b.op("MatMul", "features", b.weight(FEATURES, HIDDEN)), output="vector")
    inputs = {
        "task": (INT64, []),
        "factor": (FLOAT, [1]),
        "features": (FLOAT, [FEATURES]),
        "turned": (TensorProto.BOOL, []),
    }
    outputs = {"hidden": (FLOAT, ["batch", "sequence", HIDDEN]), "vector": (FLOAT, ["batch", HIDDEN])}
    return finish(b, inputs, outputs)


def rows_of(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Values for the inputs of `with_rows` other than ids and mask, for `count` sequences."""
    rng = np.random.default_rng(seed)
    return {
        "language": rng.integers(0, LANGUAGES, count),
        "source": rng.integers(0, SOURCES, (count, 1)),
        "features": rng.standard_normal((count, FEATURES)).astype(np.float32),
        "row_id": rng.integers(0, 1 << 20, count),
    }


def alone(
    model: ModelProto, ids: Sequence[np.ndarray], rows: Mapping[str, np.ndarray], shared: Mapping[str, np.ndarray] = {}
) -> list[dict[str, np.ndarray]]:
    """The original's results in onnxruntime for each sequence alone: outputs by name, without the batch axis.

    `shared` holds one value per sequence for inputs that in the original have one value per batch.
    """
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    results = []
    for at, row in enumerate(ids):
        feeds = {"input_ids": row[None], "attention_mask": np.ones((1, len(row)), np.int64)}
        feeds |= {name: values[at : at + 1] for name, values in rows.items()}
        feeds |= {name: np.asarray(values[at]) for name, values in shared.items()}
        results.append({name: value[0] for name, value in zip(names, session.run(None, feeds), strict=True)})
    return results


def write_tokenizer(path: Path) -> Path:
    """Writes a tokenizer.json whose words are letters, with as many ids as the models' table has rows."""
    words = {letter: number for number, letter in enumerate(string.ascii_lowercase[:VOCABULARY])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path))
    return path
