# SPDX-License-Identifier: Apache-2.0
"""A small encoder for tests of a build's passes, and onnxruntime's results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime as ort
from padfree.onnx_tools import synthetic
from padfree.onnx_tools.operators import padfree_nodes


def bert() -> onnx.ModelProto:
    """Two layers with a pooler, as exported."""
    return synthetic.bert_model(num_layers=2, hidden_size=64, num_heads=2, intermediate_size=128, vocab_size=100)


def of(model: onnx.ModelProto, operator: str) -> list[onnx.NodeProto]:
    """The nodes of a padfree operator, in order."""
    return [node for node in padfree_nodes(model.graph) if node.op_type == operator]


def run_feeds(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """All outputs for these feeds, in onnxruntime."""
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


def run(model: onnx.ModelProto, seq_lens: Sequence[int] = (3, 9, 1)) -> list[np.ndarray]:
    """All outputs of a packed model for random ids in sequences of these lengths."""
    rng = np.random.default_rng(0)
    names = [value.name for value in model.graph.input if value.name != "seq_lens"]
    feeds = {name: rng.integers(0, 2, sum(seq_lens)).astype(np.int32) for name in names}
    return run_feeds(model, {**feeds, "seq_lens": np.asarray(seq_lens, np.int32)})
