# SPDX-License-Identifier: Apache-2.0
"""Pages that walk contributors through their first change: the code on them is run, in the page's order."""

from __future__ import annotations

import re

from tests.support.pages import text


def test_the_first_pass() -> None:
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", text("first-pass"), re.MULTILINE | re.DOTALL))
    scope: dict[str, object] = {}
    exec(compile(source, "docs/contribute/first-pass.md", "exec"), scope)
    assert "double_negation" in scope
