# SPDX-License-Identifier: Apache-2.0
"""The text ensemble: texts in, the encoder's outputs out."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session
from tokenizers import Tokenizer

from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, Answer, call, call_all, texts
from .served_kinds import OUTPUTS, TOKENIZER, TRUNCATED_TO, assert_right

pytestmark = [pytest.mark.needs_triton, pytest.mark.parametrize("protocol", PROTOCOLS)]

ALL_OUTPUTS = (*OUTPUTS, "seq_lens", "truncated")
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
    assert answer["truncated"].tolist() == [[bool(encoding.overflowing)] for encoding in encodings]


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


def test_a_request_says_whether_its_texts_are_cut(server: TritonServer, session: Session, protocol: str) -> None:
    given = texts(SHORT, LONG)
    flags = {flag: np.array([[flag], [flag]]) for flag in (True, False)}
    for model in ("bert_text", "strict_text"):
        requests = [{"text": given, "truncate": flags[True]}, {"text": given, "truncate": flags[False]}]
        cut, refused = call_all(server, protocol, model, requests, ALL_OUTPUTS)
        assert_right_texts(cut, [SHORT, LONG], session)
        assert "text 1 has " in str(refused)


def test_bytes_that_are_no_text(server: TritonServer, session: Session, protocol: str) -> None:
    requests = [{"text": texts(SHORT)}, {"text": texts(SHORT, b"\xff\xfe")}, {"text": texts(SHORT)}]
    first, broken, last = call_all(server, protocol, "bert_text", requests, ALL_OUTPUTS)
    assert "'text' 1 is not UTF-8" in str(broken)
    for answer in (first, last):
        assert_right_texts(answer, [SHORT], session)


def test_a_second_text_alone(server: TritonServer, session: Session, protocol: str) -> None:
    requests = [{"text": texts(SHORT)}, {"text_pair": texts(SHORT)}]
    good, alone = call_all(server, protocol, "bert_text", requests, ALL_OUTPUTS)
    assert "'text' is missing; send one text per row, and 'text_pair' only beside it" in str(alone)
    assert_right_texts(good, [SHORT], session)


def test_large_texts_are_refused_at_once(server: TritonServer, session: Session, protocol: str) -> None:
    begin = time.monotonic()
    requests = [{"text": texts(*["word " * 200_000] * 32)}, {"text": texts(SHORT)}, {"text": texts("word " * 20_000)}]
    many, good, one = call_all(server, protocol, "bert_text", requests, ALL_OUTPUTS)
    assert "the request has 32000000 bytes of text, allowed: 1048576; send fewer texts" in str(many)
    assert "'text' 0 has 100000 bytes, allowed: 65536; send a shorter text" in str(one)
    assert_right_texts(good, [SHORT], session)
    assert time.monotonic() - begin < 20.0  # it takes less than five, mostly to send them; tokenising would take 40 s


def test_small_requests_do_not_wait_for_large_ones(server: TritonServer, session: Session, protocol: str) -> None:
    large = ["! " * 32_768] * 16  # tokenising them takes a core seconds, and more where it has other work
    waits_s, start = list[float](), time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(call_all, server, protocol, "bert_text", [{"text": texts(*large)}] * 2, ALL_OUTPUTS)
        while not slow.done():
            begin = time.monotonic()
            answer = call(server, protocol, "bert_text", {"text": texts(SHORT)}, ALL_OUTPUTS)
            waits_s.append(time.monotonic() - begin)
            assert_right_texts(answer, [SHORT], session)
        slow_s = time.monotonic() - start
        for answer in slow.result():
            assert_right_texts(answer, large, session)
    assert max(waits_s) < max(1.0, slow_s / 3), (slow_s, waits_s)
