# SPDX-License-Identifier: Apache-2.0
"""Rerankers that answer with a token, as engines, against transformers' scores for each pair, in one batch and alone.

Their last layer is computed for last tokens only, which no other engine test covers in every precision.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import padfree
import pytest
from padfree.builder import build_engine
from padfree.builder.engine.shared_builder import SharedBuilder
from padfree.builder.files import write_files
from padfree.builder.folders.companions import kept_files
from padfree.builder.folders.head import HeadOptions
from padfree.builder.folders.source import opened
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.operators import node_attributes, padfree_nodes
from padfree.runtime.plan_files import open_plan

from tests.support.scorers import PAIRS, TEXT, read, write_scorer

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

FOLDERS = {"qwen3": "Qwen3-Reranker-0.6B", "gemma": "bge-reranker-v2-gemma", "llama": "llama", "classes": "classes"}
OPTIONS = {
    "llama": HeadOptions(scores=("Yes", "No"), template=TEXT),
    "classes": HeadOptions(template="qwen3-reranker"),
}
LARGEST = {"fp32": 1e-2, "fp16": 5e-2, "bf16": 2e-1}
"""Largest error relative to a score, or to 1 for smaller ones: TF32; roundings to 11 and 8 bits at widths of 32."""


@pytest.fixture(scope="module")
def builder() -> SharedBuilder:
    """One builder for all tests, as TensorRT's takes seconds to start."""
    return SharedBuilder()


@pytest.mark.parametrize("interface", ["packed", "padded"])
@pytest.mark.parametrize("precision", list(LARGEST))
@pytest.mark.parametrize("name", list(FOLDERS))
def test_engine(name: str, precision: str, interface: str, builder: SharedBuilder, tmp_path: Path) -> None:
    folder, plan = write_scorer(name, tmp_path / FOLDERS[name]), tmp_path / "model.plan"
    with opened(folder, OPTIONS.get(name, HeadOptions())) as source:
        build_engine(
            source.path, plan, interface=interface, precision=precision, max_batch=8, max_seq_len=320, builder=builder
        )
        write_files(kept_files(source.path, plan, open_plan(plan)))
    with padfree.Model(plan) as model:
        together = model.scores(PAIRS)
        alone = np.concatenate([model.scores([pair]) for pair in PAIRS])
    wanted = np.array(read(name).scores)
    allowed = LARGEST[precision] * np.maximum(1, np.abs(wanted))
    assert (np.abs(together - wanted) <= allowed).all(), (together, wanted)
    assert (np.abs(alone - wanted) <= allowed).all(), (alone, wanted)


def test_the_last_layer_is_one_of_last_tokens(tmp_path: Path) -> None:
    """The models that the engines above are built of compute their last layer for last tokens only."""
    with opened(write_scorer("qwen3", tmp_path / FOLDERS["qwen3"])) as source:
        model = rewrite(source.path, verify=False).model
    modes = [node_attributes(node)["mode"] for node in padfree_nodes(model.graph) if node.op_type == "PadfreePool"]
    assert modes == ["last", "last", "each"]
