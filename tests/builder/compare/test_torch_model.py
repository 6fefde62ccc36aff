# SPDX-License-Identifier: Apache-2.0
"""The runner torch: a PyTorch module from a script, and the message where none is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA
from padfree.contract.installation import install_command

MODEL = str(DEMO_DATA / "bert_tiny.onnx")
SCRIPT = """
import onnxruntime, torch

class Exported(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(SCALE))
        self.session = onnxruntime.InferenceSession(MODEL)

    def forward(self, input_ids, attention_mask, token_type_ids):
        feeds = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        outputs = self.session.run(None, {name: value.numpy() for name, value in feeds.items()})
        return tuple(torch.from_numpy(item) * self.scale for item in outputs)

def load_model():
    return Exported()
"""


def test_a_model_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", MODEL, "--runners", "onnxrt,torch", "--max-seq-len", "8"]) == 1
    assert "pass --torch-model DIR" in capsys.readouterr().err


def test_a_folder_without_transformers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    command = ["compare", MODEL, "--runners", "torch", "--torch-model", str(tmp_path), "--max-seq-len", "8"]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "the runner torch needs transformers" in error
    assert install_command("export") in error


@pytest.mark.parametrize(("scale", "code"), [(1.0, 0), (1.01, 1)])
def test_a_module_of_a_script(tmp_path: Path, scale: float, code: int) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "loader.py"
    script.write_text(SCRIPT.replace("SCALE", str(scale)).replace("MODEL", repr(MODEL)))
    options = ["--runners", "torch", "--torch-model", str(script), "--max-seq-len", "8"]
    assert main(["compare", MODEL, *options]) == code
