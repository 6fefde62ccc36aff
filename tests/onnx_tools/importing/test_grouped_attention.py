# SPDX-License-Identifier: Apache-2.0
"""GroupQueryAttention without a past: a causal encoder's (Qwen3's embedding models, as onnxruntime writes them)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper
from padfree.builder.cli import main
from padfree.onnx_tools import RewriteError, rewrite, save_model
from padfree.runtime import Session

from tests.onnx_tools.agreement import INTERFACES
from tests.support.encoder import HIDDEN, POSITIONS, TOKENS, VOCABULARY, EncoderBuilder, with_output

HEADS, GROUPS, SIZE = 4, 2, 16


class Causal(EncoderBuilder):
    """Layers of GroupQueryAttention."""

    def lengths(self) -> tuple[str, str]:
        """seqlens_k and total_sequence_length, as onnxruntime-genai computes them from the mask."""
        total = self.op("ReduceSum", "attention_mask", self.axes(1), keepdims=0)
        less = self.op("Cast", self.op("Sub", total, self.constant(1, np.int64)), to=TensorProto.INT32)
        longest = self.op("Gather", self.op("Shape", "attention_mask"), self.constant(1, np.int64), axis=0)
        return less, self.op("Cast", longest, to=TensorProto.INT32)

    def causal(self, x: str, *, rotary: bool = False, interleaved: int = 0, one: bool = False, outputs: int = 1) -> str:
        less, longest = self.lengths()
        q, k, v = (self.linear(x, HIDDEN, heads * SIZE) for heads in (HEADS, GROUPS, GROUPS))
        parts = [self.op("Concat", q, k, v, axis=2), "", ""] if one else [q, k, v]
        angles = np.outer(np.arange(POSITIONS), 10.0 ** -np.arange(SIZE // 2))
        tables = [self.constant(np.cos(angles)), self.constant(np.sin(angles))] if rotary else []
        names = ["context", "present_key", "present_value"][:outputs] if outputs > 1 else ["context"]
        self.nodes.append(
            helper.make_node(
                "GroupQueryAttention", [*parts, "", "", less, longest, *tables], names, name="grouped",
                domain="com.microsoft", num_heads=HEADS, kv_num_heads=GROUPS, do_rotary=int(rotary),
                rotary_interleaved=interleaved,
            )
        )  # fmt: skip
        return self.norm(self.op("Add", self.linear("context", HEADS * SIZE, HIDDEN), x))


FORMS = {
    "plain": {},
    "one tensor": {"one": True},
    "rotary": {"rotary": True},
    "interleaved": {"rotary": True, "interleaved": 1},
}


def model_of(form: str) -> ModelProto:
    builder = Causal()
    return with_output(builder.causal(builder.embedding(), **FORMS[form]), builder, TOKENS)  # type: ignore[arg-type]


@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize("form", FORMS)
def test_packed_and_equal_to_onnxruntimes_own_operator(form: str, interface: str, tmp_path: Path) -> None:
    model = model_of(form)
    result = rewrite(model, interface=interface, strict=True)
    assert result.report.plugins["PadfreeAttention"] == 1
    save_model(result.model, tmp_path / "model.onnx")
    lengths = (7, 1, 4)
    ids = [np.random.default_rng(length).integers(0, VOCABULARY, length) for length in lengths]
    grid = np.asarray([np.pad(row, (0, 7 - len(row))) for row in ids])
    mask = (np.arange(7) < np.asarray(lengths)[:, None]).astype(np.int64)
    session = ort.InferenceSession(model.SerializeToString())
    (wanted,) = session.run(None, {"input_ids": grid, "attention_mask": mask})
    with Session(tmp_path / "model.onnx") as opened:
        for one, row, length in zip(opened.run(ids)["y"], wanted, lengths, strict=True):
            np.testing.assert_allclose(one, row[:length], atol=2e-5)


def test_keys_that_are_given_out_are_left_out_as_the_message_says(tmp_path: Path) -> None:
    builder = Causal()
    builder.op("Identity", builder.causal(builder.embedding(), outputs=3), output="y")
    key = ["batch", GROUPS, "sequence", SIZE]
    model = builder.model({"y": TOKENS, "present_key": key})
    with pytest.raises(RewriteError, match=r"its keys are read \(output 1\); leave them out with --outputs"):
        rewrite(model)
    save_model(model, tmp_path / "model.onnx")
    assert main(["optimize", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "x.onnx"), "--outputs", "y"]) == 0


def test_keys_of_the_past_are_a_decoders() -> None:
    model = model_of("plain")
    node = next(node for node in model.graph.node if node.op_type == "GroupQueryAttention")
    node.input[3] = node.input[4] = "past"
    value = helper.make_tensor_value_info("past", TensorProto.FLOAT, ["batch", "sequence", SIZE])
    model.graph.input.append(value)
    with pytest.raises(RewriteError, match="it reads keys of the past"):
        rewrite(model)
