# SPDX-License-Identifier: Apache-2.0
"""A small packed engine, and sessions that run it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from padfree.builder import build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session

MAX_BATCH = 16
MAX_SEQ_LEN = 128


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small packed engine in fp16."""
    path = tmp_path_factory.mktemp("plan") / "model.plan"
    build_engine(
        DEMO_DATA / "bert_tiny.onnx", path, precision="fp16", verify=False, max_batch=MAX_BATCH, max_seq_len=MAX_SEQ_LEN
    )
    return path


@pytest.fixture
def session(plan: Path) -> Iterator[Session]:
    with Session(plan) as opened:
        yield opened


@pytest.fixture
def plain(plan: Path) -> Iterator[Session]:
    """The same engine without CUDA graphs, whose answers serve as the reference."""
    with Session(plan, cuda_graphs=False) as opened:
        yield opened
