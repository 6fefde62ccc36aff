# SPDX-License-Identifier: Apache-2.0
"""The passes: each matches nodes of the graph, checks them with reasons, replaces them, and says what it did."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial

import onnx_graphsurgeon as gs

from ..analysis.symbolic import Analysis
from ..match import Miss
from .attention.attention import attention
from .attention_tasks import attention_tasks
from .base import PassResult, replace_each
from .embedding import embedding
from .expansion.expansion import expansion
from .first_tokens import first_tokens
from .folding import folding
from .interface import MAX_SEQLEN, packed_interface
from .layer_norm import layer_norm
from .layout import KEPT_MASKING, layout
from .neighbours import neighbours
from .pooling import pooling
from .position_tables import position_tables
from .prefixes import PREFIX, check_prefixes, prefixes
from .qk_norms import qk_norms
from .spelling.spelling import spelling
from .sums import sums
from .tokens.tokens import tokens

# A pass changes the graph; the analysis tells what is known of it.
Pass = Callable[[gs.Graph, Analysis], PassResult]

NORMALIZATION: tuple[Pass, ...] = (expansion, spelling, folding)
"""The first passes: one spelling for what models compute, with sizes that are known."""

__all__ = [
    "KEPT_MASKING",
    "MAX_SEQLEN",
    "NORMALIZATION",
    "PREFIX",
    "Miss",
    "Pass",
    "PassResult",
    "check_prefixes",
    "interface_passes",
    "packing_passes",
    "preparation",
    "replace_each",
]


def preparation(
    interface: str,
    mask: str | None = None,
    longest: int | None = None,
    *,
    contiguous: bool = False,
    left_padded: bool = False,
) -> tuple[Pass, ...]:
    """The next passes, for an engine interface ("packed" or "padded"), in order.

    `mask` is the input named as such, `longest` the length of sequences that tables allow, None: any.
    `contiguous`: no padding lies between the tokens of a row. `left_padded`: padding lies before them.
    """
    padded = interface == "padded"
    return (
        tokens,
        position_tables,
        attention(padded, mask, longest, contiguous=contiguous),
        embedding(padded),
        partial(pooling, left_padded=left_padded),
        sums(padded),
        neighbours(padded, contiguous),
    )


def packing_passes(keep: str) -> tuple[Pass, ...]:
    """The passes that pack what is left; `keep` is one of KEPT_MASKING."""
    return (layout(keep), layer_norm, qk_norms, first_tokens)


def interface_passes(
    interface: str, fillers: Mapping[str, int], unread: Collection[str], *, shares: bool = False
) -> tuple[Pass, ...]:
    """The last passes; `fillers` has, by input, what padded slots must hold where something stays padded.

    `unread` are inputs whose values are not read; the packed interface leaves them out. `shares`: it gets an input for
    shared prefixes.
    """
    if interface != "packed":
        return (attention_tasks,)
    packed = partial(packed_interface, fillers=fillers, unread_names=unread)
    return (packed, attention_tasks, *([prefixes] if shares else []))
