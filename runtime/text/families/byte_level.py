# SPDX-License-Identifier: Apache-2.0
"""Families of GPT-2: merges of bytes, and those of words that end in a mark."""

from __future__ import annotations

from functools import partial
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from .components import (
    ALL,
    BPE,
    FIRST,
    NAMELESS,
    NO_FRAME,
    SECOND,
    Components,
    Family,
    Frame,
    Settings,
    TokenizerJson,
    bpe,
    enclose,
)

_ENDS = ("cls_token", "sep_token")
_WORDS = {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN_WITH_MARKS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
_CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_NOUGAT = r"[\(\)\[\]\{\}]|([!\"#\$%\&'\*\+,\-\./:;<=>\?\\\^_`\|\~])\1*"


def _plain(
    settings: Settings,
    tokenizer_json: TokenizerJson,
    frame: Frame | None,
    normalizer: normalizers.Normalizer | None = None,
    *,
    prefix: bool = False,
    digits: bool = False,
) -> Components:
    cutter: Any = pre_tokenizers.ByteLevel(add_prefix_space=settings.truth("add_prefix_space", prefix))
    if digits:
        cutter = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cutter])
    return Components(bpe(tokenizer_json, **_WORDS), normalizer, cutter, frame)


def _roberta(settings: Settings, tokenizer_json: TokenizerJson, second: str = f"{SECOND}:0") -> Components:
    return _plain(settings, tokenizer_json, enclose(*settings.ends(), second))


def _qwen(settings: Settings, tokenizer_json: TokenizerJson, pattern: str) -> Components:
    prefix = settings.truth("add_prefix_space", False)
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
    ]
    return Components(bpe(tokenizer_json, **_WORDS), normalizers.NFC(), pre_tokenizers.Sequence(steps))


def _clip(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    unknown = settings.token("unk_token")
    model = bpe(tokenizer_json, unk_token=unknown, continuing_subword_prefix="", end_of_word_suffix="</w>")
    steps: list[Any] = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    cutters: list[Any] = [
        pre_tokenizers.Split(Regex(_CLIP), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    frame = enclose(*settings.ends("bos_token", "eos_token"))
    return Components(model, normalizers.Sequence(steps), pre_tokenizers.Sequence(cutters), frame)


def _herbert(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    """Its tokens around texts have the ids 0 and 2, whatever the vocabulary says."""
    model = bpe(tokenizer_json, unk_token=settings.token("unk_token"), end_of_word_suffix="</w>")
    normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    begin, end = settings.ends()
    pair = (begin, FIRST, end, f"{SECOND}:1", f"{end}:1")
    frame = Frame((begin, FIRST, end), pair, numbers={begin: 0, end: 2})
    return Components(model, normalizer, pre_tokenizers.BertPreTokenizer(), frame)


def _openai_gpt(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    unknown = settings.token("unk_token")
    model = bpe(tokenizer_json, unk_token=unknown, continuing_subword_prefix="", end_of_word_suffix="</w>")
    return Components(model, normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer())


def _nougat(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    """Its pattern of marks is read as plain text, which hardly any text holds."""
    begin, end = settings.ends("bos_token", "eos_token")
    steps: list[Any] = [
        pre_tokenizers.Split("SPL1T-TH1S-Pl3A5E", behavior="removed", invert=False),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(_NOUGAT, behavior="isolated", invert=False),
        pre_tokenizers.Split("\n", behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    frame = Frame((begin, FIRST, end), (FIRST, f"{SECOND}:1"))
    return Components(bpe(tokenizer_json, **_WORDS), normalizers.NFKC(), pre_tokenizers.Sequence(steps), frame)


FAMILIES = {
    "roberta": Family(BPE, _roberta, _ENDS),
    "deberta": Family(BPE, partial(_roberta, second=SECOND), _ENDS),
    "gpt2": Family(BPE, partial(_plain, frame=None)),
    "blenderbot": Family(BPE, partial(_plain, frame=None, prefix=True)),
    "gpt_neox": Family(BPE, partial(_plain, frame=NO_FRAME, normalizer=normalizers.NFC())),
    "cohere": Family(BPE, partial(_plain, frame=None, normalizer=normalizers.NFC(), digits=True), plain=NAMELESS),
    "qwen2": Family(BPE, partial(_qwen, pattern=_QWEN), plain=ALL),
    "qwen3_5": Family(BPE, partial(_qwen, pattern=_QWEN_WITH_MARKS)),
    "clip": Family(BPE, _clip, ("bos_token", "eos_token", "unk_token")),
    "herbert": Family(BPE, _herbert),
    "openai-gpt": Family(BPE, _openai_gpt, ("unk_token",)),
    "nougat": Family(BPE, _nougat, ("bos_token", "eos_token")),
}
"""By their names."""
