# SPDX-License-Identifier: Apache-2.0
"""Families of SentencePiece whose vocabulary has merges."""

from __future__ import annotations

from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from .components import BPE, FIRST, NAMELESS, SECOND, SPACE, Components, Family, Frame, Settings, TokenizerJson, bpe
from .languages import OF_NLLB


def _llama(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    prefixed = "always" if settings.truth("legacy", False) else "first"
    scheme = prefixed if settings.truth("add_prefix_space", True) else "never"
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme, split=False)
    return Components(bpe(tokenizer_json, fuse_unk=True, byte_fallback=True), None, words)


def _gemma(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    model = bpe(tokenizer_json, fuse_unk=True, byte_fallback=True, unk_token=settings.token("unk_token"))
    cutter = pre_tokenizers.Split(" ", behavior="merged_with_previous", invert=False)
    return Components(model, normalizers.Replace(" ", SPACE), cutter)


def _siglip2(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    components = _gemma(settings, tokenizer_json)
    steps: list[Any] = [normalizers.Lowercase(), components.normalizer]
    return Components(components.model, normalizers.Sequence(steps), components.pre_tokenizer)


def _words_of(settings: Settings, tokenizer_json: TokenizerJson, frame: Frame | None = None) -> Components:
    """Whole words, after the table of characters, where there is one."""
    model = bpe(tokenizer_json, fuse_unk=True, unk_token=settings.token("unk_token"))
    table: list[Any] = tokenizer_json.charsmap()
    normalizer = normalizers.Sequence([*table, normalizers.Replace(Regex(" {2,}"), " ")]) if table else None
    return Components(model, normalizer, pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"), frame)


def _nllb(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    language, end = settings.text("src_lang", "eng_Latn"), settings.token("eos_token")
    begins, ends = ((), (end, language)) if settings.truth("legacy_behaviour", False) else ((language,), (end,))
    frame = Frame((*begins, FIRST, *ends), (*begins, FIRST, SECOND, *ends), settings.token("unk_token"))
    return _words_of(settings, tokenizer_json, frame)


def _tips(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    steps: list[Any] = [normalizers.Lowercase()] if settings.truth("do_lower_case", True) else []
    cutters: list[Any] = [
        pre_tokenizers.WhitespaceSplit(),
        pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always"),
    ]
    model = bpe(tokenizer_json, fuse_unk=True, byte_fallback=True)
    return Components(
        model, normalizers.Sequence([*steps, *tokenizer_json.charsmap()]), pre_tokenizers.Sequence(cutters)
    )


FAMILIES = {
    "llama": Family(BPE, _llama),
    "gemma": Family(BPE, _gemma, ("unk_token",)),
    "siglip2": Family(BPE, _siglip2, ("unk_token",)),
    "nllb": Family(BPE, _nllb, ("eos_token", "unk_token"), extra=lambda _, tokens: tokens or OF_NLLB),
    "reformer": Family(BPE, _words_of, ("unk_token",), plain=NAMELESS),
    "tipsv2": Family(BPE, _tips),
}
"""By their names."""
