# SPDX-License-Identifier: Apache-2.0
"""Islands whose own operators apply the mask: what is masked there does not count as padding that they read."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.onnx_tools import RewriteError, rewrite
from padfree.onnx_tools.synthetic import bert_model

from tests.support.exports import assert_right, inputs_of, load

interfaces = pytest.mark.parametrize("interface", ["packed", "padded"])


@interfaces
@pytest.mark.parametrize(
    "name", ["attn_pool_ts17", "x_attn_pool_mask_mul_p160_ts17", "mean_no_special_ts17", "moe_top1_ts17"]
)
def test_pooling_that_is_masked_is_right(name: str, interface: str) -> None:
    """Softmax of masked scores, exponentials times the mask, a mask with its first slot cleared, experts by token."""
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
    """The same files without the operators that apply the mask."""
    model = load(name)
    (masking,) = [node for node in model.graph.node if masked in node.output]
    for node in model.graph.node:
        for location, item in enumerate(node.input):
            if item == masked:
                node.input[location] = kept or masking.input[0]
    with pytest.raises(RewriteError, match="reads masked slots"):
        rewrite(model, interface=interface)


@interfaces
@pytest.mark.parametrize("divisor", ["slots", "tokens"])
def test_a_mean_over_slots_depends_on_the_longest_sequence(divisor: str, interface: str) -> None:
    """The sum is masked, but its divisor is not: that is right only if the batch stays as it is."""
    model = bert_model(1, 32, 4, 64, vocab_size=60, max_positions=48)
    nodes = [
        helper.make_node("Cast", ["attention_mask"], ["kept"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["kept", "behind"], ["kept3"]),
        helper.make_node("Mul", ["last_hidden_state", "kept3"], ["shown"]),
        helper.make_node("Erf", ["shown"], ["curved"]),
    ]
    if divisor == "slots":
        nodes.append(helper.make_node("ReduceMean", ["curved"], ["out"], axes=[1], keepdims=0))
    else:
        nodes += [
            helper.make_node("ReduceSum", ["curved", "one"], ["total"], keepdims=0),
            helper.make_node("ReduceSum", ["kept", "one"], ["count"], keepdims=1),
            helper.make_node("Div", ["total", "count"], ["out"]),
        ]
    model.graph.node.extend(nodes)
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([2]), "behind"))
    model.graph.initializer.append(numpy_helper.from_array(np.asarray([1]), "one"))
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("out", TensorProto.FLOAT, None))
    if (divisor, interface) == ("slots", "packed"):
        with pytest.raises(RewriteError, match="depends on padding, and so on the other sequences"):
            rewrite(model, interface=interface)
    else:
        rewrite(model, interface=interface)
