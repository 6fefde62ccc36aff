# SPDX-License-Identifier: Apache-2.0
"""The passes: each takes a graph of its own, matches, checks with reasons, replaces, and says what it did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import onnx_graphsurgeon as gs

from ..analysis.symbolic import Analysis
from .attention.attention import attention
from .attention.tasks import attention_tasks
from .base import Miss, PassResult
from .embedding import embedding
from .first_tokens import first_tokens
from .interface import MAX_SEQLEN, packed_interface
from .neighbours import neighbours
from .norms.layer_norm import layer_norm
from .pack import KEPT_MASKING, packing
from .pooling import pooling
from .positions.position_tables import position_tables
from .simplify.simplify import simplify
from .sums import sums
from .tokens.tokens import tokens

# A pass changes the graph, of which the analysis tells what is known.
Pass = Callable[[gs.Graph, Analysis], PassResult]

__all__ = [
    "KEPT_MASKING",
    "MAX_SEQLEN",
    "Miss",
    "Pass",
    "PassResult",
    "interface_passes",
    "packing_passes",
    "preparation",
]


def preparation(
    interface: str, mask: str | None = None, longest: int | None = None, *, contiguous: bool = False
) -> tuple[Pass, ...]:
    """The first passes for an engine interface ("packed" or "padded"), in order.

    `mask` is the input named as such, `longest` the length of sequences that tables allow, None: any.
    `contiguous`: no padding lies between the tokens of a row.
    """
    padded = interface == "padded"
    return (
        simplify,
        tokens,
        position_tables,
        attention(padded, mask, longest, contiguous=contiguous),
        embedding(padded),
        pooling,
        sums(padded),
        neighbours(padded, contiguous),
    )


def packing_passes(keep: str) -> tuple[Pass, ...]:
    """The passes that pack what is left; `keep` is one of KEPT_MASKING."""
    return (packing(keep), layer_norm, first_tokens)


def interface_passes(interface: str, fillers: Mapping[str, int], unread: Collection[str]) -> tuple[Pass, ...]:
    """The last passes; `fillers` are what has to be in padded slots of inputs where something stays padded.

    `unread` are inputs whose values are not read, of which the packed interface has none.
    """
    packed = partial(packed_interface, fillers=fillers, unread_names=unread)
    return (packed, attention_tasks) if interface == "packed" else (attention_tasks,)
