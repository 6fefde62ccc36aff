# SPDX-License-Identifier: Apache-2.0
"""How many files a reader passes from `rewrite` to the first pass."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import padfree
import pytest
from padfree.onnx_tools import rewrite
from padfree.onnx_tools.passes import NORMALIZATION

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
PACKAGE = Path(padfree.__file__).parent
MOST_FILES = 33
"""There were 60, of which the steps that a float model does not need, and what later passes ask for, were half."""
FLOAT_MODELS = (
    "bert_dynamo.onnx",
    "classifier_torchscript.onnx",
    "embedder_dynamo.onnx",
    "families/deberta_v3_dynamo_eager.onnx",
    "families/modernbert_cls_classification_dynamo.onnx",
    "families/t5_torchscript_eager.onnx",
)


def files_before_the_first_pass(model: Path) -> set[str]:
    """The package's files with functions that run between the call of `rewrite` and that of the first pass."""
    first, files = NORMALIZATION[0], set[str]()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if code is first.__code__:
            sys.setprofile(None)
        elif event == "call" and code.co_name != "<module>" and code.co_filename.startswith(f"{PACKAGE}/"):
            files.add(code.co_filename.removeprefix(f"{PACKAGE}/"))

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        rewrite(model, verify=False)
    finally:
        reached_no_pass = sys.getprofile() is profile
        sys.setprofile(before)
    assert not reached_no_pass
    return files


@pytest.mark.parametrize("name", FLOAT_MODELS)
def test_few_files_are_passed_before_the_first_pass(name: str) -> None:
    files = files_before_the_first_pass(FIXTURES / name)
    assert {"onnx_tools/rewrite.py", "onnx_tools/importing/importing.py", "onnx_tools/pipeline.py"} <= files
    assert len(files) <= MOST_FILES, "\n".join(sorted(files))


def test_steps_that_a_model_does_not_need_are_not_entered() -> None:
    fused = files_before_the_first_pass(FIXTURES / "optimum" / "bert_O2.onnx")
    plain = files_before_the_first_pass(FIXTURES / "bert_dynamo.onnx")
    assert "onnx_tools/importing/standard_form.py" in fused - plain
