# SPDX-License-Identifier: Apache-2.0
"""Families of GPT-2: merges of bytes, and those of words that end in a mark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .parts import ALL, BPE, FIRST, NO_FRAME, SECOND, UNNAMED, Family, Frame, Parts, Saved, Settings, bpe

if TYPE_CHECKING:
    from tokenizers import normalizers

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
    saved: Saved,
    frame: Frame | None,
    normalizer: normalizers.Normalizer | None = None,
    *,
    prefix: bool = False,
    digits: bool = False,
) -> Parts:
    from tokenizers import pre_tokenizers

    cutter: Any = pre_tokenizers.ByteLevel(add_prefix_space=settings.truth("add_prefix_space", prefix))
    if digits:
        cutter = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), cutter])
    return Parts(bpe(saved, **_WORDS), normalizer, cutter, frame)


def _roberta(settings: Settings, saved: Saved) -> Parts:
    begin, end = settings.token("cls_token"), settings.token("sep_token")
    frame = Frame((begin, FIRST, end), (begin, FIRST, end, end, f"{SECOND}:0", end))
    return _plain(settings, saved, frame)


def _deberta(settings: Settings, saved: Saved) -> Parts:
    begin, end = settings.token("cls_token"), settings.token("sep_token")
    return _plain(settings, saved, Frame((begin, FIRST, end), (begin, FIRST, end, end, SECOND, end)))


def _gpt2(settings: Settings, saved: Saved) -> Parts:
    return _plain(settings, saved, None)


def _blenderbot(settings: Settings, saved: Saved) -> Parts:
    return _plain(settings, saved, None, prefix=True)


def _gpt_neox(settings: Settings, saved: Saved) -> Parts:
    from tokenizers import normalizers

    return _plain(settings, saved, NO_FRAME, normalizers.NFC())


def _cohere(settings: Settings, saved: Saved) -> Parts:
    from tokenizers import normalizers

    return _plain(settings, saved, None, normalizers.NFC(), digits=True)


def _qwen(settings: Settings, saved: Saved, pattern: str) -> Parts:
    from tokenizers import Regex, normalizers, pre_tokenizers

    prefix = settings.truth("add_prefix_space", False)
    steps: list[Any] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=False),
    ]
    return Parts(bpe(saved, **_WORDS), normalizers.NFC(), pre_tokenizers.Sequence(steps))


def _qwen2(settings: Settings, saved: Saved) -> Parts:
    return _qwen(settings, saved, _QWEN)


def _qwen3_5(settings: Settings, saved: Saved) -> Parts:
    return _qwen(settings, saved, _QWEN_WITH_MARKS)


def _clip(settings: Settings, saved: Saved) -> Parts:
    from tokenizers import Regex, normalizers, pre_tokenizers

    unknown = settings.token("unk_token")
    model = bpe(saved, unk_token=unknown, continuing_subword_prefix="", end_of_word_suffix="</w>")
    steps: list[Any] = [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    cutters: list[Any] = [
        pre_tokenizers.Split(Regex(_CLIP), behavior="removed", invert=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    begin, end = settings.token("bos_token"), settings.token("eos_token")
    frame = Frame((begin, FIRST, end), (begin, FIRST, end, end, f"{SECOND}:0", end))
    return Parts(model, normalizers.Sequence(steps), pre_tokenizers.Sequence(cutters), frame)


def _herbert(settings: Settings, saved: Saved) -> Parts:
    """Its tokens around texts have the ids 0 and 2, whatever the vocabulary says."""
    from tokenizers import normalizers, pre_tokenizers

    model = bpe(saved, unk_token=settings.token("unk_token"), end_of_word_suffix="</w>")
    normalizer = normalizers.BertNormalizer(lowercase=False, strip_accents=False)
    begin, end = settings.token("cls_token"), settings.token("sep_token")
    pair = (begin, FIRST, end, f"{SECOND}:1", f"{end}:1")
    frame = Frame((begin, FIRST, end), pair, numbers={begin: 0, end: 2})
    return Parts(model, normalizer, pre_tokenizers.BertPreTokenizer(), frame)


def _openai_gpt(settings: Settings, saved: Saved) -> Parts:
    from tokenizers import normalizers, pre_tokenizers

    unknown = settings.token("unk_token")
    model = bpe(saved, unk_token=unknown, continuing_subword_prefix="", end_of_word_suffix="</w>")
    return Parts(model, normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer())


def _nougat(settings: Settings, saved: Saved) -> Parts:
    """Its pattern of marks is read as plain text, which hardly any text holds."""
    from tokenizers import normalizers, pre_tokenizers

    begin, end = settings.token("bos_token"), settings.token("eos_token")
    steps: list[Any] = [
        pre_tokenizers.Split("SPL1T-TH1S-Pl3A5E", behavior="removed", invert=False),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(_NOUGAT, behavior="isolated", invert=False),
        pre_tokenizers.Split("\n", behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False),
    ]
    frame = Frame((begin, FIRST, end), (FIRST, f"{SECOND}:1"))
    return Parts(bpe(saved, **_WORDS), normalizers.NFKC(), pre_tokenizers.Sequence(steps), frame)


FAMILIES = {
    "roberta": Family(BPE, _roberta, _ENDS),
    "deberta": Family(BPE, _deberta, _ENDS),
    "gpt2": Family(BPE, _gpt2),
    "blenderbot": Family(BPE, _blenderbot),
    "gpt_neox": Family(BPE, _gpt_neox),
    "cohere": Family(BPE, _cohere, plain=UNNAMED),
    "qwen2": Family(BPE, _qwen2, plain=ALL),
    "qwen3_5": Family(BPE, _qwen3_5),
    "clip": Family(BPE, _clip, ("bos_token", "eos_token", "unk_token")),
    "herbert": Family(BPE, _herbert),
    "openai-gpt": Family(BPE, _openai_gpt, ("unk_token",)),
    "nougat": Family(BPE, _nougat, ("bos_token", "eos_token")),
}
"""By their names."""
