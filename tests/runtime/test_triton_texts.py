# SPDX-License-Identifier: Apache-2.0
"""What the Python backend's tokenizer makes of the texts of one call, without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder.demo import DEMO_DATA
from padfree.runtime import SessionError
from padfree.runtime.triton.answers import Failure, Request
from padfree.runtime.triton.parameters import TokenizerParameters
from padfree.runtime.triton.texts import OUTPUTS, TextTokenizer
from tokenizers import Tokenizer

FILE = DEMO_DATA / "tokenizer.json"
CUT = TextTokenizer(FILE, TokenizerParameters(max_length=8))
REFUSING = TextTokenizer(FILE, TokenizerParameters(max_length=8, long_texts="refuse"))
LONG = "a text of more than eight tokens, special ones included"


def column(*texts: str | bytes) -> npt.NDArray[Any]:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return np.array(encoded, dtype=object)[:, None]


def test_texts_of_one_request_are_padded_to_its_longest() -> None:
    short, mixed = CUT.answer(
        [Request({"text": column("yes")}, OUTPUTS), Request({"text": column("yes", "not now", "é")}, OUTPUTS)]
    )
    encodings = Tokenizer.from_file(str(FILE)).encode_batch(["yes", "not now", "é"])
    assert isinstance(short, dict)
    assert short["input_ids"].tolist() == [encodings[0].ids]
    assert isinstance(mixed, dict)
    assert mixed["seq_lens"].tolist() == [[len(encoding)] for encoding in encodings]
    longest = max(map(len, encodings))
    assert mixed["input_ids"].tolist() == [row.ids + [0] * (longest - len(row)) for row in encodings]
    assert all(array.dtype == np.int32 for array in mixed.values())


def test_pairs_have_token_types() -> None:
    (answer,) = CUT.answer([Request({"text": column("a"), "text_pair": column("b")}, ["token_type_ids"])])
    assert isinstance(answer, dict)
    assert answer["token_type_ids"].tolist() == [[0, 0, 0, 1, 1]]


def test_long_texts_are_cut_or_refused() -> None:
    request = Request({"text": column("short", LONG)}, OUTPUTS)
    (cut,) = CUT.answer([request])
    assert isinstance(cut, dict)
    assert cut["seq_lens"][1, 0] == 8
    assert cut["input_ids"][1, 7] == Tokenizer.from_file(str(FILE)).token_to_id("[SEP]")
    (refused,) = REFUSING.answer([request])
    assert isinstance(refused, Failure)
    assert refused.message.startswith("text 1 has ")
    assert "allowed: 8" in refused.message


BAD = {
    "one axis": ({"text": column("a")[:, 0]}, "'text' has shape [1], allowed: [texts, 1]"),
    "no texts": ({"text": column("a")[:0]}, "'text' has shape [0, 1], allowed: [texts, 1]"),
    "bytes": ({"text": column("a", b"\xff")}, "'text' 1 is not UTF-8"),
    "pairs": ({"text": column("a", "b"), "text_pair": column("c")}, "'text_pair' has 1 texts, 'text' has 2"),
    "pair bytes": ({"text": column("a"), "text_pair": column(b"\xff")}, "'text_pair' 0 is not UTF-8"),
}


def test_bad_requests_fail_alone_and_say_why() -> None:
    good = Request({"text": column("a")}, OUTPUTS)
    answers = CUT.answer([item for tensors, _ in BAD.values() for item in (good, Request(tensors, OUTPUTS))])
    for answer, (kind, (_, message)) in zip(answers[1::2], BAD.items(), strict=True):
        assert isinstance(answer, Failure), kind
        assert message in answer.message
    for answer in answers[0::2]:
        assert isinstance(answer, dict)
        assert answer["seq_lens"].tolist() == [[3]]


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(SessionError, match="no such tokenizer"):
        TextTokenizer(file, TokenizerParameters(max_length=8))
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(SessionError, match="not a tokenizer file"):
        TextTokenizer(file, TokenizerParameters(max_length=8))
