# SPDX-License-Identifier: Apache-2.0
"""Which input is the padding mask: the one that attention proves, or the one that the user names; or none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import is_token_input
from ...analysis.symbolic import Analysis
from ...errors import RewriteError
from .. import Miss
from ..values import Keeping
from .evidence import inputs_in_scores, inputs_in_weights, keys_masked_by
from .mask import TableRows
from .no_attention import no_attention


class UnprovedMaskError(RewriteError):
    """No attention proves which input is the padding mask; it may be one of `candidates`."""

    def __init__(self, facts: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{facts}; {mask_advice(candidates)}")
        self.facts, self.candidates = facts, tuple(candidates)


def mask_advice(names: Sequence[str]) -> str:
    """The advice for the user where one of these inputs may be the mask."""
    options = " or ".join(f"--mask {name}" for name in names)
    return (
        f"name the mask, which is then taken for 1 at tokens and 0 at padding, and verified: {options}; or export an "
        "encoder whose attention_mask is a plain padding mask [batch, sequence]"
    )


def choose_mask(
    graph: gs.Graph,
    analysis: Analysis,
    rows: TableRows,
    proved_rules: Sequence[Keeping | None],
    rest: Sequence[gs.Node],
    misses: Sequence[Miss],
    mask_name: str | None,
) -> Keeping | None:
    """The input that masks padding, and which of its values keep a slot; None where every slot is a token.

    `proved_rules` are the masks of the attentions that were understood, `rest` are the other attentions, `misses` say
    why these were not, and `mask_name` is the input that the user calls the mask. Raises RewriteError where an input
    may be the mask that no attention proves, where proofs disagree, or where one contradicts `mask_name`.
    """
    if not proved_rules and not rest:
        raise no_attention(graph, analysis)
    possible = [tensor for tensor in graph.inputs if is_token_input(tensor) and len(tensor.shape) == 2]
    inputs = [str(tensor.name) for tensor in possible]
    if mask_name is not None and mask_name not in inputs:
        other = any(tensor.name == mask_name for tensor in graph.inputs)
        what = "is no input [batch, sequence]" if other else "is no input"
        raise RewriteError(f"the mask '{mask_name}' {what} of the model; its inputs are {_list(inputs)}; name one")
    rules = [rule for rule in proved_rules if rule is not None]
    if not rules:
        masked_keys = [keys_masked_by(analysis, node, tensor, rows) for node in rest for tensor in possible]
        rules = [rule for rule in masked_keys if rule is not None]
    sources = sorted({rule.source for rule in rules})
    if mask_name is not None:
        return _check(possible, _named_rule(mask_name, rules, sources, rows))
    if len(sources) > 1:
        raise RewriteError(
            f"attention is masked by several inputs ({', '.join(sources)}); one padding mask is expected; export the "
            f"model with a single attention_mask, or say which one tells padding: {_options(sources)}"
        )
    if rules:
        return _check(possible, _weakest(rules))
    in_scores = set[str]().union(*(inputs_in_scores(analysis, node) for node in rest))
    in_weights = set[str]().union(*(inputs_in_weights(analysis, node) for node in rest))
    candidates = [name for name in inputs if name in in_scores | in_weights]
    if not candidates:
        return _check(possible, None)
    reasons = "; ".join(dict.fromkeys(miss.reason for miss in misses[:3]))
    readers = "the scores read" if in_scores & set(candidates) else "the weights are multiplied by"
    raise UnprovedMaskError(
        f"no attention proves which input is the padding mask ({len(rest)} found): {reasons}; {readers} "
        f"{_list(candidates)}",
        candidates,
    )


def _check(possible: Sequence[gs.Tensor], rule: Keeping | None) -> Keeping | None:
    """Returns the rule. Raises RewriteError where an input [B,S] other than a plain mask holds floats."""
    mask = None if rule is None or not rule.plain else rule.source
    for tensor in possible:
        floats = np.issubdtype(np.dtype(tensor.dtype), np.floating)
        if floats and tensor.name != mask:
            raise RewriteError(
                f"input '{tensor.name}' is {np.dtype(tensor.dtype).name} [batch, sequence], and not what masks "
                "padding; inputs of one number a token must be integers or bool; export the encoder with its token "
                "inputs alone, or, where the model makes its tokens itself, as of sound, the part after that, with "
                "embeddings [batch, sequence, N] and a mask"
            )
    return rule


def _named_rule(mask_name: str, rules: Sequence[Keeping], sources: Sequence[str], rows: TableRows) -> Keeping:
    """The rule of the input that the user names: the one that is proved of it, or that any value but 0 keeps a slot."""
    own = [rule for rule in rules if rule.source == mask_name]
    if own:
        return _weakest(own)
    if sources:
        raise RewriteError(
            f"attention is masked by {_list(sources)}, not by '{mask_name}'; leave the mask out, or name that input"
        )
    count = rows.get(mask_name)
    return Keeping(mask_name, "nonzero") if count is None or count <= 2 else Keeping(mask_name, "except", (0,))


def _weakest(rules: Sequence[Keeping]) -> Keeping:
    """The rule that most attentions follow; where others mask less, the probe finds out."""
    return max(rules, key=lambda rule: (list(rules).count(rule), str(rule)))


def _list(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _options(names: Sequence[str]) -> str:
    return " or ".join(f"--mask {name}" for name in names)
