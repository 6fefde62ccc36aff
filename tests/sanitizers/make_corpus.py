# SPDX-License-Identifier: Apache-2.0
"""Writes the corpus that padfree_fuzz starts with: python -m tests.sanitizers.make_corpus.

It has every operator with attributes and tensors that it allows, configurations with requests, and metadata of plans.
Files that fuzzing found are not made here, and are left alone.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from padfree.onnx_tools.operators import OPERATORS

from tests.support.compiled_tokenizers import SMALL_TOKENIZER
from tests.support.native_triton import metadata
from tests.support.samples import concrete_shape, variants
from tests.support.triton_core import configuration

FOLDER = Path(__file__).with_name("corpus")
CREATORS = tuple(sorted(OPERATORS))  # in the order of plugins/shell/schemas.h
FLOAT32, INT32, CHAR = 1, 5, 6  # nvinfer1::PluginFieldType
TYPES = {"int32": 3, "float32": 0, "act": 1, "fp8": 6, "int8": 2}  # nvinfer1::DataType; activations are halves
VARIANTS = 5  # per operator


def plugin(operator: str, attributes: Mapping[str, Any]) -> bytes:
    """One input of kind 'P', as plugins.cpp reads it."""
    spec = OPERATORS[operator]
    result = bytes([CREATORS.index(operator), len(attributes)])
    for name, value in attributes.items():
        if isinstance(value, str):
            kind, data = CHAR, value.encode()
        else:
            kind, data = (
                (FLOAT32, struct.pack("<f", value)) if isinstance(value, float) else (INT32, struct.pack("<i", value))
            )
        result += b"\xff" + name.encode() + b"\0" + bytes([kind, len(data)]) + data
    result += b"node\0"
    inputs, outputs = spec.inputs_for(attributes), spec.outputs_for(attributes)
    result += bytes([len(inputs), 1])
    for tensor in (*inputs, *outputs):
        shape = concrete_shape(tensor)
        result += bytes([TYPES.get(tensor.type, TYPES["act"]), 0, len(shape)])
        result += b"".join(bytes([size]) if size < 254 else b"\xff" + struct.pack("<q", size) for size in shape)
    return b"P" + result


def batching(steps: bytes = b"", **changes: Any) -> bytes:
    """One input of kind 'B', as batching.cpp reads it."""
    return b"B" + json.dumps(configuration(**changes)).encode() + b"\0" + steps


def tokenizer(texts: bytes = b"", most: int = 99, **changes: Any) -> bytes:
    """One input of kind 'K', as tokenizer.cpp reads it."""
    content = json.dumps({**SMALL_TOKENIZER, **changes}, ensure_ascii=False)
    return b"K" + content.encode() + b"\0" + bytes([most, 1]) + texts


def native(config: Mapping[str, Any], **changes: Any) -> bytes:
    """One input of kind 'N', as backend.cpp reads it."""
    return b"N" + json.dumps(metadata(**changes)).encode() + b"\0" + json.dumps(config).encode()


def request(*shape: int) -> bytes:
    """A step: a request with these sizes."""
    return b"\x02" + bytes([len(shape)]) + b"".join(struct.pack("<q", size) for size in shape)


def corpus() -> dict[str, bytes]:
    """The contents by file name."""
    result = {}
    for operator in CREATORS:
        results = list(variants(operator))
        for at, attributes in enumerate(results[:: max(1, len(results) // VARIANTS)][:VARIANTS]):
            result[f"{operator}-{at}"] = plugin(operator, attributes)
    delay = {"max_queue_delay_microseconds": 500}
    rounds = b"\0" + request(1, 600) + b"\x04" + request(1, 400) + b"\x01\0" + request(2, 300)
    result["batching"] = batching(rounds)
    result["batching-delay"] = batching(rounds, dynamic_batching=delay)
    result["batching-huge"] = batching(request(1, 2**62) + request(2**32, 2**32) + request(1, -1) + request())
    result["batching-other-input"] = batching(b"\x03\x01\x05other\0")
    result["batching-escapes"] = batching(input=[{"name": 't\u00f6k"\\\n\ud83d\ude00', "allow_ragged_batch": True}])
    refused = {"default_queue_policy": {"allow_timeout_override": True}, "priority_levels": 2, **delay}
    result["batching-refused"] = batching(dynamic_batching=refused)
    result["batching-cache"] = batching(response_cache={"enable": True}, output=[{"name": "a"}, {"name": "b"}])
    result["batching-deep"] = b"B" + b'{"a":' * 300 + b"1" + b"}" * 300
    result["batching-numbers"] = batching(parameters={"padfree_max_tokens": {"string_value": "9" * 30}})
    empty = {"name": "bert", "max_batch_size": 0, "input": [], "output": []}
    result["native-completed"] = native(empty)
    inputs = [
        {"name": "input_ids", "role": "tokens", "limit": 9, "dtype": "int32", "width": 4},
        {"name": "numbers", "role": "per_sequence", "limit": None, "dtype": "float32", "width": 2},
        {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
    ]
    outputs = [{"name": "grid", "layout": "packed", "dtype": "bool", "shape": [None, 2, 3], "dims": ["T", 2, 3]}]
    coverage = {"excluded_ids": {"input_ids": [1, -1]}}
    result["native-kinds"] = native(empty, inputs=inputs, outputs=outputs, coverage=coverage, max_positions=None)
    parameters = {f"padfree_{name}": {"string_value": "7"} for name in ("contexts", "max_tokens", "max_sequences")}
    given = {"input": [{"name": "input_ids", "data_type": "TYPE_INT32"}], "output": [{"name": "pooled"}]}
    result["native-given"] = native({**empty, **given, "parameters": parameters, "max_batch_size": 3})
    result["native-huge"] = native(empty, outputs=[{**outputs[0], "shape": [None, 2**40, 2**40], "dims": None}])
    texts = {"tokenizer": "tokenizer.compiled.json", "model": "model.plan", "max_length": "16", "prompt": "query: "}
    parameters = {f"padfree_{name}": {"string_value": value} for name, value in texts.items()}
    result["native-texts"] = native({**empty, "parameters": parameters})
    words = b"".join(word + b"\0" for word in (b"the", b"cat", b".", b"x" * 64, b""))
    result["text-rows"] = b"T\x05" + words + b"\1\1\xff" + b"The cat.\0left out\0\0caf\xe9\0" + b"x" * 70
    result["text-pairs"] = b"T\x17" + words + b"\2\1\2\x0c" + b"the\0cat cat cat cat cat cat\0new\0the the"
    result["text-cut"] = b"T\x00" + words + b"\2\1\x04" + b"the the the the the\0" * 3
    result["tokenizer"] = tokenizer(b"\0a caf\xc3\xa9 [x]!\0\0" + b"\1aa b\0" + b"\xe3\x80\xae\xe3\x80\xaf" * 3 + b"\0")
    result["tokenizer-cut"] = tokenizer(b"\1" + b"a " * 40 + b"\0b\0", most=8)
    result["tokenizer-frame"] = tokenizer(single={"ids": [[1]], "types": [[0], [0]], "text_types": []})
    return result


def main() -> None:
    """Writes the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, content in corpus().items():
        (FOLDER / name).write_bytes(content)


if __name__ == "__main__":
    main()
