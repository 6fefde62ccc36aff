# SPDX-License-Identifier: Apache-2.0
"""The sanitized build reads its corpus, and some damaged copies of it, without a finding."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from padfree.onnx_tools.operators import OPERATORS

from .make_corpus import CREATORS, corpus

FOLDER = Path(__file__).parent
SCHEMAS = FOLDER.parents[1] / "plugins" / "shell" / "schemas.h"


def test_creators_are_the_library_s() -> None:
    """They are all creators of the library, in its order: files of the corpus name a creator by its number."""
    listed = re.search(r"kOperators = \{(.*?)\};", SCHEMAS.read_text(), re.DOTALL)
    assert listed is not None
    functions = re.findall(r"(\w+)Operator\b", listed[1])
    assert [f"Padfree{name[0].upper()}{name[1:]}" for name in functions] == list(CREATORS)


def test_every_operator_is_in_the_corpus() -> None:
    assert sorted(OPERATORS) == sorted(CREATORS)
    assert [name for name in OPERATORS if not (FOLDER / "corpus" / f"{name}-0").exists()] == []


def test_the_corpus_holds_what_is_made() -> None:
    """If this fails after a change of operators, run python -m tests.sanitizers.make_corpus."""
    result = corpus()
    assert len(result) > 30
    for name, content in result.items():
        assert (FOLDER / "corpus" / name).read_bytes() == content, name


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
def test_nothing_is_found() -> None:
    done = subprocess.run([FOLDER / "run", "--seconds", "5"], capture_output=True, text=True, check=False)
    if "TensorRT headers" in done.stderr or "No matching distribution" in done.stderr:
        pytest.skip(f"cannot be built here: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    files, copies = map(int, re.findall(r"^(\d+) files, (\d+) damaged copies: nothing found$", done.stdout, re.M)[0])
    assert files == sum(1 for _ in (FOLDER / "corpus").iterdir())
    assert copies > 1000
