# SPDX-License-Identifier: Apache-2.0
"""Instructions that C++ cannot express are in one folder of plugins/."""

from __future__ import annotations

import re
from pathlib import Path

PLUGINS = Path(__file__).parents[2] / "plugins"


def test_inline_ptx_stands_in_one_folder() -> None:
    sources = [path for path in PLUGINS.rglob("*") if path.suffix in {".cu", ".cuh", ".h", ".cpp"}]
    with_ptx = {
        path.parent.relative_to(PLUGINS).as_posix() for path in sources if re.search(r"\basm\b", path.read_text())
    }
    assert with_ptx == {"common/ptx"}
