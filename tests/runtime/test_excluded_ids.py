# SPDX-License-Identifier: Apache-2.0
"""RoBERTa counts positions by ids: in a packed model, a padding id in a sequence would shift all later positions."""

from __future__ import annotations

from pathlib import Path

import pytest
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime import Session, SessionError

ROBERTA = Path(__file__).resolve().parents[1] / "fixtures" / "families" / "roberta_torchscript_sdpa.onnx"
PADDING_ID = 1


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_a_padding_id_inside_a_sequence(interface: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    save_model(rewrite(ROBERTA, interface=interface, verify=False).model, path)
    request = [[5, 6], [7, PADDING_ID, 8]]
    with Session(path) as session:
        assert len(session.run([[5, 6], [7, 8]])["last_hidden_state"]) == 2
        if interface == "padded":
            session.run(request)
            return
        with pytest.raises(SessionError, match="'input_ids' value 1 at sequence 1, position 1: it stands for padding"):
            session.run(request)
        session.run_packed([5, 6, PADDING_ID], [2], filler_tokens=1)
