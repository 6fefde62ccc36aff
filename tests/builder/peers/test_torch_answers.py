# SPDX-License-Identifier: Apache-2.0
"""Which results of PyTorch's model are compared, with a stand-in for its tensors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder.peers import torch_peers
from padfree.builder.peers.contender import UnavailableError
from padfree.builder.peers.torch_peers import answers_of
from padfree.runtime import OutputInfo

Array = npt.NDArray[Any]
SEQ_LENS = (3, 1)


class Rows:
    """Stands in for a tensor."""

    def __init__(self, values: Array) -> None:
        self.values = values

    def numpy(self) -> Array:
        return self.values

    def cpu(self) -> Rows:
        return self

    def float(self) -> Rows:
        return self


def setup_with(name: str, layout: str) -> Any:
    metadata = SimpleNamespace(outputs=(OutputInfo(name, layout, "float32"),))
    return SimpleNamespace(model=SimpleNamespace(original_metadata=metadata), batch=SimpleNamespace(seq_lens=SEQ_LENS))


def test_rows_of_padding_are_left_out() -> None:
    result = {"last_hidden_state": Rows(np.arange(12.0).reshape(2, 3, 2)), "more": Rows(np.zeros(1))}
    answers = answers_of(setup_with("last_hidden_state", "padded"), result)
    assert [row.tolist() for row in answers["last_hidden_state"]] == [[[0, 1], [2, 3], [4, 5]], [[6, 7]]]


def test_packed_rows_are_those_of_their_sequences() -> None:
    result = {"last_hidden_state": Rows(np.arange(8.0).reshape(4, 2))}
    answers = answers_of(setup_with("last_hidden_state", "padded"), result, packed=True)
    assert [row.tolist() for row in answers["last_hidden_state"]] == [[[0, 1], [2, 3], [4, 5]], [[6, 7]]]


def test_a_model_with_other_outputs_cannot_take_part() -> None:
    with pytest.raises(UnavailableError, match=r"gives last_hidden_state, and not sentence_embedding; .*--pooling"):
        answers_of(setup_with("sentence_embedding", "per_sequence"), {"last_hidden_state": Rows(np.zeros((2, 3, 2)))})


def test_a_type_that_transformers_does_not_know_cannot_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers", reason="needs transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "of-tomorrow"}), encoding="utf-8")
    monkeypatch.setattr(torch_peers, "torch_module", MagicMock())
    setup: Any = SimpleNamespace(model=SimpleNamespace(torch_folder=tmp_path, half="fp16"), device=0)
    with pytest.raises(UnavailableError, match=r"cannot read the folder.*of-tomorrow"):
        torch_peers.load(setup)
