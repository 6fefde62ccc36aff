# SPDX-License-Identifier: Apache-2.0
"""Nodes that tell which slots are kept, from the mask's values."""

from __future__ import annotations

import numpy as np
import onnx_graphsurgeon as gs

from ...analysis import Editor
from ...match.values import Keeping


def keep_nodes(editor: Editor, mask: gs.Tensor, rule: Keeping) -> gs.Tensor:
    """int32 [B,S]: not 0 where the mask input's value keeps a slot."""
    if rule.form in ("nonzero", "zero"):
        if rule.form == "nonzero" and np.dtype(mask.dtype) == np.int32:
            return mask
        # Any non-zero value keeps a slot, and must stay non-zero as int32.
        truth = mask if np.dtype(mask.dtype) == np.bool_ else editor.cast(mask, np.bool_, "padfree_kept")
    elif rule.form in ("above", "below"):
        limit = editor.scalar(rule.values[0], mask.dtype)
        op = "Greater" if rule.form == "above" else "Less"
        truth = editor.op(op, mask, limit, stem="padfree_kept")
    else:
        truth = _is_one_of(editor, mask, rule.values)
    if rule.form in ("zero", "except"):
        truth = editor.op("Not", truth, stem="padfree_kept")
    return editor.cast(truth, np.int32, "padfree_mask")


def _is_one_of(editor: Editor, mask: gs.Tensor, values: tuple[int, ...]) -> gs.Tensor:
    either: gs.Tensor | None = None
    for value in values:
        same = editor.op("Equal", mask, editor.scalar(value, mask.dtype), stem="padfree_same")
        either = same if either is None else editor.op("Or", either, same, stem="padfree_same")
    if either is None:
        raise AssertionError("a rule without values")
    return either
