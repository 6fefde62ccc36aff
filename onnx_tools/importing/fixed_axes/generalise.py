# SPDX-License-Identifier: Apache-2.0
"""Makes a graph with fixed axes into one for every size."""

from __future__ import annotations

import onnx_graphsurgeon as gs

from ...analysis import tidy
from .exchange import exchange
from .sizes import FixedSizes
from .unknowns import Unknowns
from .walk import SizeWalk


def generalise(graph: gs.Graph, fixed: FixedSizes) -> None:
    """Makes the batch and the sequence of a sorted graph without Constant nodes dynamic, in place.

    The tensors' shapes are those of the file, with "B" and "S" for dynamic axes of the inputs; the inputs have the
    shape ["B", "S"]. Raises RewriteError where a number or a constant cannot be told from one of another meaning.
    """
    unknowns = Unknowns(fixed)
    walk = SizeWalk(graph, unknowns)
    for tensor in graph.tensors().values():
        facts = walk.facts.get(tensor.name)
        if isinstance(tensor, gs.Variable) and facts is not None and tensor not in graph.inputs:
            shape = None if facts.shape is None else [unknowns.final(size) for size in facts.shape]
            letters = {"B": "B", "S": "S"}
            tensor.shape = None if shape is None else [
                letters.get(str(size)) if size.constant() is None else size.constant() for size in shape
            ]  # fmt: skip
    exchange(graph, walk, unknowns)
    tidy(graph)
