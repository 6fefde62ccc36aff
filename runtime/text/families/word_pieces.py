# SPDX-License-Identifier: Apache-2.0
"""Families of BERT: words, and pieces of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tokenizers import normalizers, pre_tokenizers

from .components import FIRST, SECOND, WORD_PIECE, Components, Family, Frame, Settings, TokenizerJson, enclose

_ENDS = ("cls_token", "sep_token")


def bert_frame(settings: Settings, kind: int = 0) -> Frame:
    """[CLS] A [SEP] B [SEP], with the type of [CLS]."""
    begin, end = settings.ends()
    single = (f"{begin}:{kind}", f"{FIRST}:0", f"{end}:0")
    return Frame(single, (*single, f"{SECOND}:1", f"{end}:1"))


def _bert(
    settings: Settings,
    tokenizer_json: TokenizerJson,
    frame: Callable[[Settings], Frame] = bert_frame,
    *,
    may_keep_controls: bool = False,
) -> Components:
    model = {
        "type": WORD_PIECE, "unk_token": settings.token("unk_token"), "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100, "vocab": tokenizer_json.model["vocab"],
    }  # fmt: skip
    normalizer = normalizers.BertNormalizer(
        clean_text=settings.truth("clean_text", True) if may_keep_controls else True,
        handle_chinese_chars=settings.truth("tokenize_chinese_chars", True),
        strip_accents=settings.optional_truth("strip_accents"),
        lowercase=settings.truth("do_lower_case", True),
    )
    return Components(model, normalizer, pre_tokenizers.BertPreTokenizer(), frame(settings))


def _splinter_frame(settings: Settings) -> Frame:
    begin, end = settings.ends()
    question = (settings.token("question_token"), ".")
    first, second = (question, ()) if settings.pads_right else ((), question)
    pair = (f"{begin}:0", f"{FIRST}:0", *first, f"{end}:0", f"{SECOND}:1", *second, f"{end}:1")
    single = (f"{begin}:0", f"{FIRST}:0", f"{end}:0")
    return Frame(single, pair, settings.token("unk_token"))


def _family(build: Callable[[Settings, TokenizerJson], Components], *more: str) -> Family:
    return Family(WORD_PIECE, build, (*_ENDS, *more))


FAMILIES = {
    "bert": _family(_bert),
    "mpnet": _family(partial(_bert, frame=lambda settings: enclose(*settings.ends()))),
    "funnel": _family(partial(_bert, frame=partial(bert_frame, kind=2), may_keep_controls=True)),
    "splinter": _family(partial(_bert, frame=_splinter_frame), "question_token"),
}
"""By their names."""
