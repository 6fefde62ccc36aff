# SPDX-License-Identifier: Apache-2.0
"""How the Python backend's tokenizer answers the texts of one call, without a server."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import SessionError
from padfree.runtime.triton.answers import Failure, Reply, TritonRequest
from padfree.runtime.triton.aside import BACKLOG_BYTES, Aside
from padfree.runtime.triton.parameters import TokenizerParameters
from padfree.runtime.triton.texts import OUTPUTS, Texts, TextTokenizer
from tokenizers import Tokenizer

FILE = DEMO_DATA / "tokenizer.json"
CUT = TextTokenizer(FILE, TokenizerParameters(max_length=8))
REFUSING = TextTokenizer(FILE, TokenizerParameters(max_length=8, long_texts="refuse"))
LONG = "a text of more than eight tokens, special ones included"


def ask(tokenizer: TextTokenizer, *requests: TritonRequest) -> list[Reply]:
    return tokenizer.answer([tokenizer.read(request) for request in requests])


def column(*texts: str | bytes) -> npt.NDArray[Any]:
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    return np.array(encoded, dtype=object)[:, None]


def test_texts_of_one_request_are_padded_to_its_longest() -> None:
    short, mixed = ask(
        CUT,
        TritonRequest({"text": column("yes")}, OUTPUTS),
        TritonRequest({"text": column("yes", "not now", "é")}, OUTPUTS),
    )
    encodings = Tokenizer.from_file(str(FILE)).encode_batch(["yes", "not now", "é"])
    assert isinstance(short, dict)
    assert short["input_ids"].tolist() == [encodings[0].ids]
    assert isinstance(mixed, dict)
    assert mixed["seq_lens"].tolist() == [[len(encoding)] for encoding in encodings]
    longest = max(map(len, encodings))
    assert mixed["input_ids"].tolist() == [row.ids + [0] * (longest - len(row)) for row in encodings]
    assert mixed.pop("truncated").tolist() == [[False]] * 3
    assert all(array.dtype == np.int32 for array in mixed.values())


def test_a_request_says_which_of_its_texts_may_be_cut() -> None:
    counted: list[int] = []
    parameters = TokenizerParameters(max_length=8, long_texts="refuse")
    tokenizer = TextTokenizer(FILE, parameters, counted.append)

    def asking(*flags: bool) -> Reply:
        tensors = {"text": column("short", LONG), "truncate": np.array(flags)[:, None]}
        return ask(tokenizer, TritonRequest(tensors, OUTPUTS))[0]

    cut = asking(False, True)
    assert isinstance(cut, dict)
    assert cut["truncated"].tolist() == [[False], [True]]
    assert cut["seq_lens"].tolist()[1] == [8]
    assert counted == [1]
    refused = asking(True, False)
    assert isinstance(refused, Failure)
    assert "text 1 has " in refused.message
    assert "let it be cut ('truncate')" in refused.message
    odd = asking(True)
    assert isinstance(odd, Failure)
    assert "'truncate' has shape [1, 1], allowed: [2, 1]" in odd.message
    assert counted == [1]


def test_pairs_have_token_types() -> None:
    (answer,) = ask(CUT, TritonRequest({"text": column("a"), "text_pair": column("b")}, ["token_type_ids"]))
    assert isinstance(answer, dict)
    assert answer["token_type_ids"].tolist() == [[0, 0, 0, 1, 1]]


def test_long_texts_are_cut_or_refused() -> None:
    request = TritonRequest({"text": column("short", LONG)}, OUTPUTS)
    (cut,) = ask(CUT, request)
    assert isinstance(cut, dict)
    assert cut["seq_lens"][1, 0] == 8
    assert cut["input_ids"][1, 7] == Tokenizer.from_file(str(FILE)).token_to_id("[SEP]")
    (refused,) = ask(REFUSING, request)
    assert isinstance(refused, Failure)
    assert refused.message.startswith("text 1 has ")
    assert "allowed: 8" in refused.message


BAD = {
    "one axis": ({"text": column("a")[:, 0]}, "'text' has shape [1], allowed: [texts, 1]"),
    "no texts": ({"text": column("a")[:0]}, "'text' has shape [0, 1], allowed: [texts, 1]"),
    "bytes": ({"text": column("a", b"\xff")}, "'text' 1 is not UTF-8"),
    "pairs": ({"text": column("a", "b"), "text_pair": column("c")}, "'text_pair' has 1 texts, 'text' has 2"),
    "no text": ({"text_pair": column("a")}, "'text' is missing; send one text per row, and 'text_pair' only beside it"),
    "nothing": ({}, "'text' is missing"),
    "a large text": ({"text": column("a", "b" * 65537)}, "'text' 1 has 65537 bytes, allowed: 65536; send a shorter"),
    "a large second text": ({"text": column("a"), "text_pair": column("é" * 32769)}, "'text_pair' 0 has 65538 bytes"),
    "a large request": (
        {"text": column(*["c" * 40000] * 27)},
        "the request has 1080000 bytes of text, allowed: 1048576",
    ),
    "a large pair": (
        {"text": column("c" * 600000), "text_pair": column("c" * 600000)},
        "the request has 1200000 bytes of text",
    ),
    "pair bytes": ({"text": column("a"), "text_pair": column(b"\xff")}, "'text_pair' 0 is not UTF-8"),
}


def test_bad_requests_fail_alone_and_say_why() -> None:
    good = TritonRequest({"text": column("a")}, OUTPUTS)
    answers = ask(CUT, *(item for tensors, _ in BAD.values() for item in (good, TritonRequest(tensors, OUTPUTS))))
    for answer, (kind, (_, message)) in zip(answers[1::2], BAD.items(), strict=True):
        assert isinstance(answer, Failure), kind
        assert message in answer.message
    for answer in answers[0::2]:
        assert isinstance(answer, dict)
        assert answer["seq_lens"].tolist() == [[3]]


LIMITED = TextTokenizer(FILE, TokenizerParameters(max_length=8, max_text_bytes=6, max_request_bytes=9))


def test_limits_are_the_configuration_s() -> None:
    allowed, large, many = ask(
        LIMITED,
        *(TritonRequest({"text": column(*texts)}, OUTPUTS) for texts in (["123456"], ["1234567"], ["12345", "12345"])),
    )
    assert isinstance(allowed, dict)
    assert isinstance(large, Failure)
    assert large.message == (
        "'text' 0 has 7 bytes, allowed: 6; send a shorter text, or serve with a larger padfree_max_text_bytes"
    )
    assert isinstance(many, Failure)
    assert many.message.startswith("the request has 10 bytes of text, allowed: 9; send fewer texts per request")


@pytest.mark.parametrize("name", ["max_text_bytes", "max_request_bytes"])
def test_limits_that_mean_nothing_are_refused(name: str) -> None:
    with pytest.raises(SessionError, match=f"'padfree_{name}' is 0, allowed: 1 or more"):
        TokenizerParameters(max_length=8, **{name: 0})


def test_a_text_as_large_as_allowed_has_the_tokens_of_its_whole() -> None:
    """The text is not cut before it is tokenised: a word that a cut splits would have other tokens."""
    text = "a " * 32765 + "longer"
    whole = TextTokenizer(FILE, TokenizerParameters(max_length=70000))
    (answer,) = ask(whole, TritonRequest({"text": column(text)}, OUTPUTS))
    assert isinstance(answer, dict)
    assert answer["input_ids"][0].tolist() == Tokenizer.from_file(str(FILE)).encode(text).ids


def test_answers_from_aside_are_those_of_the_call() -> None:
    requests = [
        TritonRequest({"text": column("a b", LONG * 300)}, OUTPUTS),
        TritonRequest({"text": column(LONG)}, ["seq_lens"]),
    ]
    expected = ask(CUT, *requests)
    aside, actual = Aside(CUT), [CUT.read(request) for request in requests]
    sent: dict[int, Reply] = {}
    for at, texts in enumerate(actual):
        assert isinstance(texts, Texts)
        aside.submit(texts, partial(sent.__setitem__, at))
    aside.close()
    for at, answer in enumerate(expected):
        assert isinstance(answer, dict)
        assert {name: array.tolist() for name, array in answer.items()} == {
            name: array.tolist()
            for name, array in dict(sent[at]).items()  # type: ignore[arg-type]
        }


def test_too_many_large_requests_are_told_to_come_again() -> None:
    """The first request is taken whatever its size; all others only while there is room."""

    class HeldTokenizer:
        def answer_aside(self, _: Texts) -> Reply:
            assert gate.wait(20)
            raise SystemExit

    gate, sent = threading.Event(), []
    aside = Aside(HeldTokenizer())  # type: ignore[arg-type]
    for size_bytes in (BACKLOG_BYTES + 1, 1, 1):
        aside.submit(Texts([], [], (), size_bytes), sent.append)
    assert [answer.busy for answer in sent] == [True, True]
    assert f"{BACKLOG_BYTES + 1} bytes of long texts wait, allowed: {BACKLOG_BYTES}; try again later" in sent[0].message
    gate.set()
    aside.close()
    assert sent[2] == Failure("the texts could not be tokenised: SystemExit()", is_refusal=False)
    aside = Aside(CUT)
    aside.submit(Texts(["a"], [True], OUTPUTS, BACKLOG_BYTES), sent.append)  # there is room again
    aside.close()
    assert isinstance(sent[3], dict)


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(SessionError, match="no such tokenizer"):
        TextTokenizer(file, TokenizerParameters(max_length=8))
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(SessionError, match="not a tokenizer file"):
        TextTokenizer(file, TokenizerParameters(max_length=8))


def test_a_tokenizer_with_more_ids_than_the_model_s_table() -> None:
    """With another tokenizer.json in the repository, the tensorrt backend would read beyond the table."""
    for rows in (0, 930, 1000):
        TextTokenizer(FILE, TokenizerParameters(max_length=8, vocabulary=rows))
    with pytest.raises(SessionError, match=r"has ids up to 929 \('zip'\), 'padfree_vocabulary' is 929: it is another"):
        TextTokenizer(FILE, TokenizerParameters(max_length=8, vocabulary=929))
