# SPDX-License-Identifier: Apache-2.0
"""Families of SentencePiece whose vocabulary has weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tokenizers import Regex, normalizers, pre_tokenizers

from .components import (
    FIRST,
    SECOND,
    SPACE,
    UNIGRAM,
    Components,
    Family,
    Frame,
    Settings,
    TokenizerJson,
    enclose,
    unigram,
)
from .languages import OF_MBART, OF_MBART50
from .word_pieces import bert_frame

_ENDS = ("cls_token", "sep_token")
_TIDY = (
    normalizers.Replace(Regex(r"\s{2,}|[\n\r\t]"), " "),
    normalizers.NFC(),
    normalizers.Strip(left=False, right=True),
)
_MADE_UP = tuple(f"<madeupword{number}>" for number in range(7))


def _words(settings: Settings, *, always: bool = False, otherwise: str = "never") -> pre_tokenizers.PreTokenizer:
    scheme = "always" if always or settings.truth("add_prefix_space", True) else otherwise
    return pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)


def _between_spaces(words: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])


def _replace(pattern: str, by: str = " ") -> normalizers.Normalizer:
    return normalizers.Replace(Regex(pattern), by)


def _sequence(*steps: Any) -> normalizers.Normalizer:
    return normalizers.Sequence(list(steps))


def _as_table(tokenizer_json: TokenizerJson) -> normalizers.Normalizer | None:
    return next(iter(tokenizer_json.charsmap()), None)


def _position(
    settings: Settings, tokenizer_json: TokenizerJson, otherwise: int, *, of_weight: float | None = None
) -> int:
    """Where the unknown token stands in the vocabulary."""
    name, pieces = settings.token("unk_token"), tokenizer_json.pieces
    at = pieces.index(name) if name in pieces else None
    fits = at is not None and of_weight in (None, tokenizer_json.model["vocab"][at][1])
    return at if at is not None and fits else otherwise


def _xlm_roberta(settings: Settings, tokenizer_json: TokenizerJson, unknown: int | None = 3) -> Components:
    """`unknown`: the index of the unknown token; None: it stands somewhere in the vocabulary."""
    at = _position(settings, tokenizer_json, 0) if unknown is None else unknown
    frame = enclose(*settings.ends("bos_token", "eos_token"), SECOND)
    words = _between_spaces(_words(settings))
    return Components(unigram(tokenizer_json, at), _as_table(tokenizer_json), words, frame)


def _quotes(
    settings: Settings, tokenizer_json: TokenizerJson, *, keeps_accents: bool, lower: bool, spaces: bool = False
) -> Any:
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    steps += [_replace(" {2,}")] if spaces else []
    steps += [] if keeps_accents else [normalizers.NFKD(), normalizers.StripAccents()]
    steps += [normalizers.Lowercase()] if settings.truth("do_lower_case", lower) else []
    return _sequence(*steps, *tokenizer_json.charsmap())


def _albert(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    keeps_accents = settings.truth("keep_accents", False)
    normalizer = _quotes(settings, tokenizer_json, keeps_accents=keeps_accents, lower=True)
    return Components(unigram(tokenizer_json, 1), normalizer, _between_spaces(_words(settings)), bert_frame(settings))


def _rembert(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    keeps_accents = settings.truth("keep_accents", True)
    normalizer = _quotes(settings, tokenizer_json, keeps_accents=keeps_accents, lower=False, spaces=True)
    return Components(unigram(tokenizer_json, 2), normalizer, _words(settings), bert_frame(settings))


def _xlnet(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    begin, end = settings.ends()
    single = (f"{FIRST}:0", f"{end}:0")
    frame = Frame((*single, f"{begin}:2"), (*single, f"{SECOND}:1", f"{end}:1", f"{begin}:2"))
    normalizer = _quotes(settings, tokenizer_json, keeps_accents=False, lower=False)
    return Components(unigram(tokenizer_json, 0), normalizer, _between_spaces(_words(settings, always=True)), frame)


def _deberta_v2(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    steps: list[Any] = [normalizers.Lowercase()] if settings.truth("do_lower_case", False) else []
    steps += _TIDY
    cutters: list[Any] = [pre_tokenizers.Punctuation("isolated")] if settings.truth("split_by_punct", False) else []
    words = pre_tokenizers.Sequence([*cutters, _words(settings, otherwise="first")])
    return Components(
        unigram(tokenizer_json, _position(settings, tokenizer_json, 1, of_weight=0)),
        _sequence(*steps),
        words,
        bert_frame(settings),
    )


def _barthez(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    return Components(unigram(tokenizer_json, 3), _sequence(*_TIDY), _words(settings))


def _big_bird(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    steps = [normalizers.Strip(left=False, right=False), _replace(" {2,}", SPACE)]
    model = unigram(tokenizer_json, _position(settings, tokenizer_json, 100, of_weight=0))
    return Components(model, _sequence(*steps), _words(settings), bert_frame(settings))


def _t5(settings: Settings, tokenizer_json: TokenizerJson, unknown: int = 2, *, ends: bool = True) -> Components:
    end = settings.token("eos_token") if ends else ""
    return Components(
        unigram(tokenizer_json, unknown),
        _as_table(tokenizer_json),
        _between_spaces(_words(settings, always=True)),
        Frame((FIRST, end), (FIRST, end, SECOND, end)) if ends else None,
    )


def _mbart(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    ends = (settings.token("eos_token"), settings.text("src_lang", "en_XX"))
    frame = Frame((FIRST, *ends), (FIRST, SECOND, *ends), settings.token("unk_token"))
    return Components(unigram(tokenizer_json, 3), None, _between_spaces(_words(settings, always=True)), frame)


def _mbart50(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    begin, end = settings.text("src_lang", "en_XX"), settings.token("eos_token")
    frame = Frame((begin, FIRST, end), (begin, FIRST, SECOND, end), settings.token("unk_token"))
    normalizer = _sequence(*tokenizer_json.charsmap(), _replace(" {2,}"))
    return Components(unigram(tokenizer_json, 3), normalizer, _words(settings, always=True), frame)


def _pegasus(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    end = settings.token("eos_token")
    normalizer = _sequence(*(tokenizer_json.charsmap() or [_replace("\n")]), _replace(" {2,}"))
    model, words = unigram(tokenizer_json, _position(settings, tokenizer_json, 0)), _words(settings, always=True)
    return Components(model, normalizer, words, Frame((FIRST, end), (FIRST, SECOND, end)))


def _xglm(settings: Settings, tokenizer_json: TokenizerJson) -> Components:
    end = settings.token("eos_token")
    normalizer = _sequence(*tokenizer_json.charsmap(), _replace(" {2,}"))
    frame = Frame((end, FIRST), (end, FIRST, end, end, SECOND))
    return Components(unigram(tokenizer_json, 3), normalizer, _words(settings), frame)


def _sentinels(settings: Settings, tokens: Sequence[Any]) -> Sequence[Any]:
    if any("<extra_id_" in str(token) for token in tokens):
        return tokens
    return [*tokens, *(f"<extra_id_{number}>" for number in range(settings.count("extra_ids", 100)))]


def _masks(settings: Settings, _: Sequence[Any]) -> Sequence[Any]:
    """The mask tokens with which Pegasus' vocabulary begins."""
    return ["<mask_1>", *(f"<unk_{number}>" for number in range(2, settings.count("offset", 103)))]


def _first_then(first: Sequence[Any], second: Sequence[Any]) -> Sequence[Any]:
    return [*first, *(token for token in second if token not in first)]


_BEGIN_END = ("bos_token", "eos_token")
FAMILIES = {
    "xlm-roberta": Family(UNIGRAM, _xlm_roberta, _BEGIN_END),
    "camembert": Family(UNIGRAM, partial(_xlm_roberta, unknown=None), _BEGIN_END),
    "albert": Family(UNIGRAM, _albert, _ENDS, keeps_frame=True),
    "rembert": Family(UNIGRAM, _rembert, _ENDS),
    "xlnet": Family(UNIGRAM, _xlnet, _ENDS),
    "deberta-v2": Family(UNIGRAM, _deberta_v2, _ENDS),
    "barthez": Family(UNIGRAM, _barthez),
    "big_bird": Family(UNIGRAM, _big_bird, _ENDS),
    "t5": Family(UNIGRAM, _t5, ("eos_token",), extra=_sentinels),
    "lasr": Family(UNIGRAM, partial(_t5, unknown=3), ("eos_token",), extra=_sentinels),
    "videoprism": Family(UNIGRAM, partial(_t5, ends=False), extra=_sentinels),
    "mbart": Family(UNIGRAM, _mbart, ("eos_token", "unk_token"), extra=lambda _, tokens: _first_then(OF_MBART, tokens)),
    "mbart50": Family(UNIGRAM, _mbart50, ("eos_token", "unk_token"), extra=lambda _, tokens: [*tokens, *OF_MBART50]),
    "pegasus": Family(UNIGRAM, _pegasus, ("eos_token", "unk_token"), extra=_masks),
    "xglm": Family(UNIGRAM, _xglm, ("eos_token",), extra=lambda _, tokens: _first_then(tokens, _MADE_UP)),
}
"""By their names."""
