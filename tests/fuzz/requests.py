# SPDX-License-Identifier: Apache-2.0
"""The doors for callers: bodies of HTTP requests, and arrays that a session reads from a file."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from padfree.onnx_tools import rewrite

from tests.support.encoder import HIDDEN, one_layer
from tests.support.skips import without

from .damage import damaged_document

if TYPE_CHECKING:
    from padfree.serving.http.body import Body
    from padfree.serving.options import ServeOptions

MOST_ELEMENTS = 1 << 16  # per array: larger ones exercise nothing new in a reader, and are slow
DTYPES = ("int32", "int64", "uint64", "int8", "float32", "float64", "bool", "complex64", "U3", "M8[s]")


def missing() -> str | None:
    """The reason why no body can be read here; None if it can."""
    return without("orjson", "starlette")


def bodies() -> Mapping[str, bytes]:
    """A body for each kind of route."""
    results: dict[str, Any] = {
        "embeddings": {"input": ["one text", "another"], "model": "m", "encoding_format": "base64", "dimensions": 8},
        "embed": {"inputs": "a text", "truncate": True, "normalize": False, "prompt_name": "query"},
        "rerank": {"query": "what", "documents": ["this", "that"], "top_n": 1, "return_documents": True},
        "predict": {"inputs": [["a", "b"], ["c"]], "raw_scores": False},
        "ids": {"input": [[101, 7, 102], [101, 102]]},
    }
    return {name: json.dumps(value).encode() for name, value in results.items()}


def read_body(data: bytes, folder: Path) -> None:
    """Reads every field of every route. Callers get an ApiError; anything else would be an error in the server."""
    from padfree.serving.errors import ApiError
    from padfree.serving.http.body import Body
    from padfree.serving.options import ServeOptions

    del folder
    for options in (ServeOptions(), ServeOptions(accept_token_ids=True)):
        with contextlib.suppress(ApiError):
            for each in _readers(Body(data), options):
                with contextlib.suppress(ApiError):
                    each()


def _readers(body: Body, options: ServeOptions) -> list[Callable[[], object]]:
    from padfree.serving.http.body import read_inputs, read_pairs, read_texts

    return [
        *(functools.partial(body.optional_text, name) for name in ("model", "prompt_name", "user")),
        *(functools.partial(body.truth, name, True) for name in ("truncate", "normalize", "raw_scores")),
        *(functools.partial(body.optional_count, name) for name in ("dimensions", "top_n")),
        lambda: body.choice("encoding_format", ("float", "base64")),
        *(functools.partial(_list, read_inputs, body, name, options) for name in ("input", "inputs")),
        lambda: read_texts(body.raw("documents"), "documents", options),
        lambda: read_pairs(body.raw("inputs"), "inputs", options),
        lambda: body.text("query"),
    ]


def _list(read: Callable[..., object], body: Body, name: str, options: ServeOptions) -> object:
    return read(body.raw(name), name, options)


@functools.cache
def packed_model() -> bytes:
    """A rewritten model of one layer."""
    builder, hidden = one_layer()
    builder.op("Identity", hidden, output="y")
    return rewrite(builder.model({"y": ["batch", "sequence", HIDDEN]})).model.SerializeToString()


def arrays() -> Mapping[str, bytes]:
    """Undamaged requests, as JSON that gives the type, shape and values of each array."""
    ids = {"dtype": "int32", "shape": [4], "values": [3, 4, 5, 6]}
    lengths = {"dtype": "int32", "shape": [2], "values": [1, 3]}
    return {"ids and lengths": json.dumps({"input_ids": ids, "seq_lens": lengths}).encode()}


def damage_arrays(data: bytes, rng: np.random.Generator) -> bytes:
    """Changes types, shapes, values and names."""
    value = json.loads(data)
    for array in value.values():
        if rng.random() < 0.3:
            array["dtype"] = DTYPES[int(rng.integers(len(DTYPES)))]
    return damaged_document(json.dumps(value).encode(), rng)


def write(data: bytes, path: Path) -> bool:
    """Writes the arrays as a file for `padfree run`; False if the JSON describes none."""
    inputs = json.loads(data)
    results = {}
    for name, reports in inputs.items() if isinstance(inputs, dict) else ():
        with contextlib.suppress(Exception):  # NumPy cannot make such an array, so no caller can send it
            shape = tuple(int(size) for size in reports["shape"])
            if "/" in name or "\0" in name or np.prod(shape, dtype=np.float64) > MOST_ELEMENTS:
                continue
            values = np.resize(np.asarray(reports["values"]), shape).astype(reports["dtype"])
            results[name] = values
    if results:
        np.savez(path, **results)
    return bool(results)
