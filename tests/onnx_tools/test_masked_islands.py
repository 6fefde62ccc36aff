# SPDX-License-Identifier: Apache-2.0
"""Islands whose own operators apply the mask: what is masked there is not padding that they read."""

from __future__ import annotations

import pytest
from padfree.onnx_tools import RewriteError, rewrite

from .exports import assert_right, inputs_of, load

interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


@interfaces
@pytest.mark.parametrize(
    "name", ["attn_pool_ts17", "x_attn_pool_mask_mul_p160_ts17", "mean_no_special_ts17", "moe_top1_ts17"]
)
def test_pooling_that_is_masked_is_right(name: str, interface: str) -> None:
    """Softmax of masked scores, exponentials times the mask, a mask whose first slot was cleared, experts by token."""
    assert_right(load(name), inputs_of(name), interface)


@interfaces
@pytest.mark.parametrize(
    ("name", "masked", "kept"),
    [
        ("attn_pool_ts17", "/Where_output_0", "/Squeeze_output_0"),
        ("x_attn_pool_mask_mul_p160_ts17", "/Mul_output_0", "/Exp_output_0"),
        ("mean_no_special_ts17", "/Mul_2_output_0", ""),
    ],
)
def test_pooling_that_is_not_masked_is_refused(name: str, masked: str, kept: str, interface: str) -> None:
    """The same files without the operator that applies the mask."""
    model = load(name)
    (masking,) = [node for node in model.graph.node if masked in node.output]
    for node in model.graph.node:
        for place, item in enumerate(node.input):
            if item == masked:
                node.input[place] = kept or masking.input[0]
    with pytest.raises(RewriteError, match="reads masked slots"):
        rewrite(model, interface=interface)
