# SPDX-License-Identifier: Apache-2.0
"""Records what AutoTokenizer makes of TEXTS and PAIRS in every folder of tokenizer_kinds.

python -m tests.support.tokenizer_answers needs transformers 5 and tokenizers, and no other dependency of padfree.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from .rebuilt_kinds import REBUILT_KINDS
from .tokenizer_kinds import KINDS, MOST, PAIRS, TEXTS

ANSWERS = Path(__file__).parents[1] / "fixtures" / "tokenizer_answers.json"


def answers(folder: Path) -> dict[str, Any]:
    """Ids and types, if there are any, of texts and pairs, whole and cut to MOST tokens."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    results = {}
    for name, inputs in (("texts", (list(TEXTS),)), ("pairs", tuple(map(list, zip(*PAIRS, strict=True))))):
        for suffix, options in (("", {}), ("_cut", {"truncation": True, "max_length": MOST})):
            result = tokenizer(*inputs, **options)
            results[name + suffix] = {key: result[key] for key in ("input_ids", "token_type_ids") if key in result}
    return results


def main() -> int:
    """Writes the file ANSWERS."""
    import transformers

    with tempfile.TemporaryDirectory() as scratch:
        kinds = {kind.name: answers(kind.write(Path(scratch) / kind.name)) for kind in (*KINDS, *REBUILT_KINDS)}
    content = {"transformers": transformers.__version__, "kinds": kinds}
    ANSWERS.write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
