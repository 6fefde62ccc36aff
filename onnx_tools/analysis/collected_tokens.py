# SPDX-License-Identifier: Apache-2.0
"""Tokens that a model collects: those with an id that it knows, and those that an input numbers.

GLiNER takes the rows of all class markers and of the first token of each word. Its `words_mask` numbers the words from
1 and is 0 at all other tokens; its `text_lengths` says how many words each sequence has.
"""

from __future__ import annotations

import onnx_graphsurgeon as gs

from .graph import is_standard, producer
from .onnx_operators import Movement, moving
from .walks import readers_after

_SAME_TOKENS = ("And", "Cast", "Identity", "Squeeze", "Unsqueeze")
_SAME_VALUES = moving(*Movement) - {"Concat"} | {"GatherElements", "GatherND", "ReduceMax"}
_FIRST = 1  # the number of the first numbered token


def collects(comparison: gs.Node) -> bool:
    """Whether the positions of the tokens for which a comparison is true are collected (NonZero)."""
    readers = readers_after(comparison.outputs, lambda reader, _: is_standard(reader, *_SAME_TOKENS))
    return any(is_standard(reader, "NonZero") for reader, _ in readers)


def numbered_tokens(graph: gs.Graph) -> dict[str, str | None]:
    """Every input that numbers tokens from 1 on, with the input that holds their count; None where no input does.

    Rows of numbered tokens are written (ScatterND) to these positions of a tensor as long as the largest count.
    """
    inputs = {str(tensor.name) for tensor in graph.inputs}
    result: dict[str, str | None] = {}
    for node in graph.nodes:
        if not is_standard(node, "ScatterND"):
            continue
        of_rows = {name for name, subtrahend in _sources(node.inputs[1]) if subtrahend == _FIRST} & inputs
        maker = producer(node.inputs[0])
        is_empty = maker is not None and is_standard(maker, "ConstantOfShape")
        counts = {name for name, _ in _sources(maker.inputs[0])} & inputs if maker is not None and is_empty else set()
        for name in of_rows:
            result[name] = next(iter(sorted(counts - {name})), None)
    return result


def _sources(tensor: gs.Tensor) -> set[tuple[str, float]]:
    """The tensors whose values a tensor holds, each with what was subtracted from it."""
    waiting, sources = [(tensor, 0.0)], set[tuple[str, float]]()
    while waiting:
        current, subtrahend = waiting.pop()
        if (current.name, subtrahend) in sources:
            continue
        sources.add((str(current.name), subtrahend))
        node = producer(current)
        if node is None:
            continue
        if is_standard(node, "Concat"):
            waiting += [(item, subtrahend) for item in node.inputs]
        elif is_standard(node, "Sub", "Add") and isinstance(node.inputs[1], gs.Constant):
            values = node.inputs[1].values.reshape(-1)
            if values.size == 1:
                number = float(values[0]) if node.op == "Sub" else -float(values[0])
                waiting.append((node.inputs[0], subtrahend + number))
        elif is_standard(node, *_SAME_VALUES):
            waiting.append((node.inputs[0], subtrahend))
    return sources
