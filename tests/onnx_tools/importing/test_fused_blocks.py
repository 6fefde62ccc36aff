# SPDX-License-Identifier: Apache-2.0
"""Block-quantised weights of few bits are imported as the floats that they stand for, as in onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper
from padfree.onnx_tools import RewriteError, rewrite

from tests.onnx_tools.agreement import INTERFACES, assert_agree
from tests.support.encoder import TOKENS, EncoderBuilder, with_output

from .fused_nodes import TOLERANCE, expand, numbers, one_node, run

ROWS = 6
IDS = np.random.default_rng(2).integers(0, ROWS, (7, 5))


def _bytes(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("block", [16, 32])
@pytest.mark.parametrize("zeros", ["none", "bytes"])
def test_matmuls(bits: int, block: int, zeros: str) -> None:
    """There are 24 columns, so that the last block is either full or half filler."""
    width = 24
    blocks = -(-width // block)
    inputs = {
        "x": numbers(7, 5, width),
        "w": _bytes(ROWS, blocks, block * bits // 8),
        "s": np.abs(numbers(ROWS, blocks)) / (1 << bits),
        "z": _bytes(ROWS, -(-blocks * bits // 8)) if zeros == "bytes" else np.zeros(0, np.uint8),
    }
    held = ("w", "s", "z") if zeros == "bytes" else ("w", "s")
    model = one_node("MatMulNBits", inputs, weights=held, N=ROWS, K=width, bits=bits, block_size=block)
    result = expand(model)
    assert {node.op_type for node in result.graph.node} <= {"MatMul", "Identity"}
    wanted, actual = (run(item, {"x": inputs["x"]}, [0])[0] for item in (model, result))
    assert np.allclose(wanted, actual, atol=TOLERANCE * 10)  # sums of 24 terms


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_tables(bits: int, zeros: bool) -> None:
    width, block = 48, 16
    inputs = {
        "w": _bytes(ROWS, width * bits // 8),
        "ids": IDS,
        "s": np.abs(numbers(ROWS, width // block)),
        "z": _bytes(ROWS, -(-width // block * bits // 8)) if zeros else np.zeros(0, np.uint8),
    }
    held = ("w", "s", "z") if zeros else ("w", "s")
    model = one_node(
        "GatherBlockQuantized", inputs, weights=held, bits=bits, block_size=block, gather_axis=0, quantize_axis=1
    )
    result = expand(model)
    assert {node.op_type for node in result.graph.node} <= {"Gather", "Identity"}
    wanted, actual = (run(item, {"ids": IDS}, [0])[0] for item in (model, result))
    assert np.allclose(wanted, actual, rtol=TOLERANCE, atol=TOLERANCE)


class FewBits(EncoderBuilder):
    """Products with four-bit weights, and a four-bit table."""

    def linear(self, x: str, inputs: int, outputs: int) -> str:
        blocks = inputs // 16
        stored = self.constant(self._rng.integers(0, 256, (outputs, blocks, 8)), np.uint8)
        scale = self.constant(self._rng.uniform(0.01, 0.1, (outputs, blocks)))
        y = self.op("MatMulNBits", x, stored, scale, domain="com.microsoft", N=outputs, K=inputs, bits=4, block_size=16)
        return self.op("Add", y, self.weight(outputs))


@pytest.mark.parametrize("interface", INTERFACES)
def test_encoders(interface: str) -> None:
    b = FewBits()
    model = with_output(b.layer(b.embedding(), b.padding_mask()), b, TOKENS)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    result = rewrite(model, interface=interface, strict=True)
    assert_agree(model, result, tolerance=1e-4)


def test_rounded_activations_are_refused() -> None:
    inputs = {"x": numbers(7, 5, 16), "w": _bytes(ROWS, 1, 8), "s": np.abs(numbers(ROWS, 1))}
    model = one_node("MatMulNBits", inputs, weights=("w", "s"), N=ROWS, K=16, bits=4, block_size=16, accuracy_level=4)
    with pytest.raises(RewriteError, match="it rounds its activations to int8"):
        expand(model)
