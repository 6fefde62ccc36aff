# SPDX-License-Identifier: Apache-2.0
"""Engines of other families on a GPU: positions with an offset, rotary embeddings, padded islands."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "onnx_tools"))
from families import SPECIAL_IDS, Case, all_cases, feeds_for, masks, session
from padfree.builder import build_engine
from padfree.onnx_tools import load_model
from padfree.runtime import Session

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

NAMES = ("roberta_torchscript_sdpa", "nomic_bert_dynamo_sdpa", "mpnet_torchscript_eager", "modernbert_dynamo_sdpa")
CASES = [case for case in all_cases() if case.name in NAMES]
MAX_SEQ_LEN = 32
TOLERANCE = 1e-3
"""Of an output's root mean square: fp32 in both, sums in another order."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_packed_engine_gives_the_originals_answers(case: Case, tmp_path: Path) -> None:
    plan = tmp_path / "model.plan"
    build_engine(
        case.path,
        plan,
        precision="fp32",
        verify=False,
        max_batch=8,
        max_seq_len=MAX_SEQ_LEN,
        timing_cache=tmp_path.parent / "timing.cache",
    )
    mask = masks("packed")["prefix"]
    feeds = feeds_for(load_model(case.path), mask, SPECIAL_IDS)
    with Session(plan) as engine:
        given = {}
        for item in engine.metadata.inputs:
            values = {
                "tokens": lambda name=item.name: feeds[name][mask],
                "seq_lens": lambda: mask.sum(1),
                "max_seqlen": lambda: np.zeros(mask.shape[1]),
            }[item.role]()
            given[item.name] = values.astype(np.int32)
        results = engine.backend.run(given)
        outputs = engine.metadata.outputs
    if "max_seqlen" in given:
        # Triton gives the tokens of its largest request, which may be several sequences.
        with Session(plan, cuda_graphs=False) as engine:
            wide = engine.backend.run({**given, "max_seqlen": np.zeros(3 * MAX_SEQ_LEN, np.int32)})
        for name, values in results.items():
            np.testing.assert_allclose(wide[name], values, atol=TOLERANCE)
    names = [output.name for output in outputs]
    for output, wanted in zip(outputs, session(case.path).run(names, feeds), strict=True):
        expected = wanted[mask] if output.layout == "packed" else wanted
        error = np.abs(results[output.name] - expected).max() / np.sqrt((expected**2).mean())
        assert error <= TOLERANCE, f"{output}: {error:.1e}"
