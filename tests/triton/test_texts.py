# SPDX-License-Identifier: Apache-2.0
"""The text ensemble: texts in, the encoder's outputs out."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from calls import PROTOCOLS, Answer, call, call_all, texts
from padfree.builder.demo import DEMO_DATA
from padfree.runtime import Session
from served import OUTPUTS, TOKENIZER, TRUNCATED_TO, assert_right
from tokenizers import Tokenizer
from triton_server import TritonServer

pytestmark = [pytest.mark.needs_triton, pytest.mark.parametrize("protocol", PROTOCOLS)]

ALL_OUTPUTS = (*OUTPUTS, "seq_lens")
TEXTS = (DEMO_DATA / "texts.txt").read_text(encoding="utf-8").splitlines()
SHORT = "a short text"
LONG = " ".join(TEXTS[:5])


def assert_right_texts(answer: Answer, given: Sequence[str | tuple[str, str]], session: Session) -> None:
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.enable_truncation(TRUNCATED_TO)
    encodings = tokenizer.encode_batch(list(given))
    ids, types = [encoding.ids for encoding in encodings], [encoding.type_ids for encoding in encodings]
    assert_right(answer, ids, session, types)
    assert answer["seq_lens"].tolist() == [[len(row)] for row in ids]


def test_texts_of_many_callers(server: TritonServer, session: Session, protocol: str) -> None:
    requests = [[text] for text in TEXTS] + [list(TEXTS[at : at + 3]) for at in range(20)]
    answers = call_all(server, protocol, "bert_text", [{"text": texts(*request)} for request in requests], ALL_OUTPUTS)
    for answer, request in zip(answers, requests, strict=True):
        assert_right_texts(answer, request, session)


def test_pairs_of_texts(server: TritonServer, session: Session, protocol: str) -> None:
    tensors = {"text": texts("what is it", "and this"), "text_pair": texts("a query with an answer", "yes")}
    answer = call(server, protocol, "bert_text", tensors, ALL_OUTPUTS)
    assert_right_texts(answer, [("what is it", "a query with an answer"), ("and this", "yes")], session)


def test_long_texts_are_refused_where_configured(server: TritonServer, session: Session, protocol: str) -> None:
    requests = [{"text": texts(SHORT)}, {"text": texts(SHORT, LONG)}, {"text": texts(SHORT)}]
    first, long, last = call_all(server, protocol, "strict_text", requests, ALL_OUTPUTS)
    assert re.search(rf"text 1 has \d+ tokens, allowed: {TRUNCATED_TO}; send a shorter text", str(long))
    for answer in (first, last):
        assert_right_texts(answer, [SHORT], session)


def test_bytes_that_are_no_text(server: TritonServer, session: Session, protocol: str) -> None:
    requests = [{"text": texts(SHORT)}, {"text": texts(SHORT, b"\xff\xfe")}, {"text": texts(SHORT)}]
    first, broken, last = call_all(server, protocol, "bert_text", requests, ALL_OUTPUTS)
    assert "'text' 1 is not UTF-8" in str(broken)
    for answer in (first, last):
        assert_right_texts(answer, [SHORT], session)
