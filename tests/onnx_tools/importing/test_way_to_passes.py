# SPDX-License-Identifier: Apache-2.0
"""A plain model's way to the first pass leads through few files: others are for what few models need."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from padfree import onnx_tools
from padfree.onnx_tools import pipeline, rewrite

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PACKAGES = Path(onnx_tools.__file__).parent.parent
MOST_FILES = 32


@pytest.mark.parametrize("name", ["bert_dynamo.onnx", "bert_eager_torchscript.onnx"])
def test_few_files_are_entered_before_the_first_pass(name: str) -> None:
    files: set[str] = set()
    first_pass = pipeline._PassRun.run.__code__

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if frame.f_code is first_pass:
            sys.setprofile(None)
        elif event == "call" and frame.f_code.co_filename.startswith(str(PACKAGES)):
            files.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        rewrite(FIXTURES / name, verify=False)
    finally:
        sys.setprofile(None)
    assert 20 < len(files) <= MOST_FILES, sorted(files)
