# SPDX-License-Identifier: Apache-2.0
"""Types and sizes of a model's tensors in the terms of Triton's model configuration."""

from __future__ import annotations

from padfree.builder.errors import BuildError
from padfree.contract.metadata import InputInfo, OutputInfo

TYPES = {
    "float32": "TYPE_FP32",
    "float16": "TYPE_FP16",
    "bfloat16": "TYPE_BF16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "bool": "TYPE_BOOL",
}
SHOWN_TYPES = {"bfloat16": "float32"}  # what NumPy lacks leaves a session wider
VARIABLE = -1


def type_of(item: InputInfo) -> str:
    """The configuration's name of an input's type."""
    return "TYPE_FP32" if item.holds_floats else "TYPE_INT32"


def type_name(dtype: str) -> str:
    """The configuration's name of a NumPy type name.

    Raises:
        BuildError: Triton has no such type, or padfree does not serve it.
    """
    if dtype not in TYPES:
        raise BuildError(f"type {dtype} cannot be served, allowed: {', '.join(TYPES)}; cast it in the model")
    return TYPES[dtype]


def output_dims(output: OutputInfo) -> list[int]:
    """A request's part of this output, without n: [-1, ...] with a row per token, [...] with a row per sequence.

    Raises:
        BuildError: a size after batch and sequence is not known.
    """
    if output.shape is None:
        raise BuildError(
            f"output '{output.name}': the metadata does not say its shape (an older padfree wrote it); rewrite and "
            "build the model again"
        )
    if output.sizes[:1] not in (("T",), ("B",)):
        raise BuildError(
            f"output '{output.name}' is [{', '.join(str(size) for size in output.sizes)}]: Triton takes answers apart "
            "along the first axis, which has to be the batch; export the model without this output, or with that axis "
            "first"
        )
    if output.unknown_size is not None:
        raise BuildError(
            f"output '{output.name}' is [{', '.join(str(size) for size in output.sizes)}]: {output.unknown_size} "
            "follows from values, so that sequences of one batch have answers of different shapes; run the model with "
            "padfree run or padfree.runtime.Session, which take its sequences one by one"
        )
    own = [VARIABLE if size is None else size for size in output.shape[1:]]
    if output.layout == "packed" and VARIABLE in own:
        raise BuildError(
            f"output '{output.name}' has shape {list(output.shape)}, whose sizes after the tokens are not all fixed: "
            "Triton could not tell where an answer ends; export the model with fixed sizes there"
        )
    return [VARIABLE, *own] if output.layout == "packed" else own
