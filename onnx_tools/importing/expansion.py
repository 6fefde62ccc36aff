# SPDX-License-Identifier: Apache-2.0
"""How many nodes a model has with its functions in line: thirty functions that each call the next twice make 10^9."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto

from ..errors import RewriteError
from ..files import subgraphs

MOST_NODES = 1 << 18  # of a model; BERT-large with every norm and activation in a function has some 5,000

Key = tuple[str, str, str]


def check_expansion(model: ModelProto) -> None:
    """Raises RewriteError where functions call themselves, or the model gets more than MOST_NODES nodes."""
    functions = {(item.domain, item.name, getattr(item, "overload", "")): item for item in model.functions}
    sizes: dict[Key, int] = {}
    for key in functions:
        _measure(key, functions, sizes)
    total = sum(sizes.get(key, 1) for key in _calls(model.graph.node))
    if total > MOST_NODES:
        raise RewriteError(
            f"the model's functions, written out, make {total} nodes, allowed are {MOST_NODES}; export the model with "
            "fewer functions, or with less nesting"
        )


def _measure(first: Key, functions: dict[Key, FunctionProto], sizes: dict[Key, int]) -> None:
    """Adds the sizes of a function and of all that it calls; without recursion, which hostile nesting would exhaust."""
    open_keys: dict[Key, None] = {}  # each calls the next
    waiting = [first]
    while waiting:
        key = waiting[-1]
        if key in sizes:
            waiting.pop()
            continue
        calls = list(_calls(functions[key].node))
        missing = [inner for inner in calls if inner in functions and inner not in sizes]
        if not missing:
            sizes[key] = sum(sizes.get(inner, 1) for inner in calls)
            open_keys.pop(key, None)
            waiting.pop()
            continue
        open_keys[key] = None
        for inner in missing:
            if inner in open_keys:
                raise RewriteError(
                    f"the model is not valid ONNX: function '{inner[0]}.{inner[1]}' calls itself; export it again"
                )
        waiting += dict.fromkeys(missing)


def _calls(nodes: Iterable[NodeProto]) -> Iterator[Key]:
    """What each node calls, nodes in subgraphs included; mostly operators."""
    stack: list[Any] = [iter(nodes)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        yield node.domain, node.op_type, getattr(node, "overload", "")
        stack += [iter(inner.node) for inner in subgraphs(node)]
