# SPDX-License-Identifier: Apache-2.0
"""JSON deeper than Python's recursion limit, or with numbers of thousands of digits: one clear error everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.batches import read_batch
from padfree.builder.errors import BuildError
from padfree.builder.simulate.trace import read_trace
from padfree.builder.triton.folder import MANIFEST, read_manifest
from padfree.contract.fields import decode
from padfree.runtime import SessionError
from padfree.runtime.batching import read_costs
from padfree.runtime.plan_files import parse_metadata

JSON = ["[" * 100_000, '{"a":' * 100_000, '{"at_ms": ' + "1" * 5000 + ', "length": 3}']


@pytest.mark.parametrize("text", JSON, ids=["lists", "objects", "digits"])
@pytest.mark.parametrize("read", [read_trace, read_costs, None], ids=["trace", "costs", "ids"])
def test_it_is_refused_with_the_file_s_name(
    tmp_path: Path, packed_metadata: dict[str, Any], text: str, read: Callable[[Path], Any] | None
) -> None:
    metadata = parse_metadata(packed_metadata, "model")
    file = tmp_path / "deep.jsonl"
    file.write_text(text + "\n", encoding="utf-8")
    with pytest.raises((BuildError, SessionError), match=r"deep\.jsonl"):
        read(file) if read else read_batch(file, metadata)
    with pytest.raises(ValueError, match=r"nested too deeply|digits"):
        decode(text)


def test_a_manifest_of_a_repository_is_then_none(tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text(JSON[0], encoding="utf-8")
    assert read_manifest(tmp_path) is None
