# SPDX-License-Identifier: Apache-2.0
"""What a tokenizer class of transformers builds of a tokenizer.json's vocabulary and of its settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from . import classes

if TYPE_CHECKING:
    from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

_WORD_PIECES = (classes.BERT, classes.MPNET, classes.FUNNEL, classes.SPLINTER)
_MODELS: Mapping[str, str] = {
    **dict.fromkeys(_WORD_PIECES, "WordPiece"),
    **dict.fromkeys((classes.ROBERTA, classes.DEBERTA, classes.GPT2), "BPE"),
}
_UNKNOWN_IDS: Mapping[str, int] = {
    classes.XLM_ROBERTA: 3,
    classes.BARTHEZ: 3,
    classes.ALBERT: 1,
    classes.REMBERT: 2,
    classes.T5: 2,
}
"""Where unknown words go, whatever tokenizer.json says."""
SAVED_FRAMES = (classes.ALBERT,)
"""Families whose tokens around texts are those of tokenizer.json, where it has any."""
_SPACES = r"\s{2,}|[\n\r\t]"


class Settings:
    """Settings of a tokenizer, with the defaults of its class; every one is asked for by its name.

    Args:
        kind: the class.
        given: tokenizer_config.json.
        wrong: makes the error for an entry that is of no allowed kind: of its name, and what is allowed.
    """

    def __init__(
        self, kind: classes.TokenizerClass, given: Mapping[str, Any], wrong: Callable[[str, str], Exception]
    ) -> None:
        self.kind, self._given, self._wrong = kind, given, wrong

    @property
    def pads_right(self) -> bool:
        """Whether padding stands on the right, where it does not say otherwise."""
        return bool(self._given.get("padding_side", "right") == "right")

    def truth(self, name: str, default: bool) -> bool:
        """True or false."""
        found = self.kind.fixed.get(name, self._given.get(name))
        if found is not None and type(found) is not bool:
            raise self._wrong(name, "true or false")
        return default if found is None else bool(found)

    def optional_truth(self, name: str) -> bool | None:
        """True, false or null."""
        return None if self._given.get(name) is None else self.truth(name, False)

    def token(self, name: str) -> str:
        """The content of a special token."""
        found = self._given.get(name) or self.kind.defaults.get(name)
        content = found.get("content") if isinstance(found, dict) else found
        if not isinstance(content, str):
            raise self._wrong(name, "a token")
        return content


def can_rebuild(settings: Settings, saved: Mapping[str, Any]) -> bool:
    """Whether tokenizer.json holds a vocabulary of the kind that the class builds its tokenizer of."""
    model = saved.get("model", {})
    known = {str(token.get("content")) for token in saved.get("added_tokens", ())} | _words(model)
    if any(settings.token(name) not in known for name in _around(settings.kind.family)):
        return False
    if settings.kind.family == classes.BERT_FRAME:
        return True
    wanted = _MODELS.get(settings.kind.family, "Unigram")
    if wanted == "WordPiece":
        vocabulary = model.get("vocab")
        return isinstance(vocabulary, dict) and "merges" not in model and settings.token("unk_token") in vocabulary
    return str(model.get("type", wanted if ("merges" in model) == (wanted == "BPE") else "")) == wanted


def rebuilt(settings: Settings, saved: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a class, without added tokens and without a post-processor of its own, see `post_processor`."""
    from tokenizers import Tokenizer

    family = settings.kind.family
    if family == classes.BERT_FRAME:
        return Tokenizer.from_str(json.dumps(saved))
    model = dict(saved["model"])
    if _MODELS.get(family) == "WordPiece":
        model = {
            "type": "WordPiece", "unk_token": settings.token("unk_token"), "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": model["vocab"],
        }  # fmt: skip
    elif _MODELS.get(family) == "BPE":
        model |= {"unk_token": None, "fuse_unk": False, "dropout": None, "byte_fallback": False}
        model |= {"continuing_subword_prefix": "", "end_of_word_suffix": ""}
    else:
        model |= {"byte_fallback": False, "unk_id": _unknown_id(settings, model)}
    content = {**saved, "model": model, "added_tokens": [], "normalizer": None, "pre_tokenizer": None}
    made = Tokenizer.from_str(json.dumps({**content, "post_processor": None, "padding": None, "truncation": None}))
    normalizer, cutter = _normalizer(settings, saved), _pre_tokenizer(settings)
    if normalizer is not None:
        made.normalizer = normalizer
    if cutter is not None:
        made.pre_tokenizer = cutter
    return made


def post_processor(settings: Settings, tokenizer: Tokenizer) -> processors.PostProcessor | None:
    """What stands around texts; None: what tokenizer.json says."""
    from tokenizers import processors

    def template(single: str, pair: str, *names: str) -> processors.PostProcessor:
        tokens = {settings.token(name): tokenizer.token_to_id(settings.token(name)) for name in names}
        return processors.TemplateProcessing(single=single, pair=pair, special_tokens=list(tokens.items()))

    family = settings.kind.family
    if family in (classes.GPT2, classes.BARTHEZ):
        return None
    if family == classes.T5:
        return template("$A </s>", "$A </s> $B </s>", "eos_token")
    if family in (classes.XLM_ROBERTA, classes.CAMEMBERT):
        begin, end = settings.token("bos_token"), settings.token("eos_token")
        return template(f"{begin} $A {end}", f"{begin} $A {end} {end} $B {end}", "bos_token", "eos_token")
    begin, end = settings.token("cls_token"), settings.token("sep_token")
    if family in (classes.ROBERTA, classes.MPNET):
        frame: Any = [(name, tokenizer.token_to_id(name)) for name in (end, begin)]
        return processors.RobertaProcessing(*frame)
    if family == classes.DEBERTA:
        return template(f"{begin} $A {end}", f"{begin} $A {end} {end} $B {end}", "cls_token", "sep_token")
    if family == classes.XLNET:
        single = f"$A:0 {end}:0"
        return template(f"{single} {begin}:2", f"{single} $B:1 {end}:1 {begin}:2", "cls_token", "sep_token")
    if family == classes.SPLINTER:
        question = settings.token("question_token")
        first, second = (f"{question} .", "") if settings.pads_right else ("", f"{question} .")
        dot = tokenizer.token_to_id(".")
        tokens = [(name, tokenizer.token_to_id(name)) for name in (begin, end, question)]
        return processors.TemplateProcessing(
            single=f"{begin}:0 $A:0 {end}:0",
            pair=" ".join(f"{begin}:0 $A:0 {first} {end}:0 $B:1 {second} {end}:1".split()),
            special_tokens=[*tokens, (".", tokenizer.token_to_id(settings.token("unk_token")) if dot is None else dot)],
        )
    single = f"{begin}:{2 if family == classes.FUNNEL else 0} $A:0 {end}:0"
    return template(single, f"{single} $B:1 {end}:1", "cls_token", "sep_token")


def _around(family: str) -> tuple[str, ...]:
    """The special tokens that stand around texts."""
    if family in (classes.XLM_ROBERTA, classes.CAMEMBERT):
        return "bos_token", "eos_token"
    usual = "cls_token", "sep_token"
    others = {classes.GPT2: (), classes.BARTHEZ: (), classes.T5: ("eos_token",)}
    return {**others, classes.SPLINTER: (*usual, "question_token")}.get(family, usual)


def _words(model: Mapping[str, Any]) -> set[str]:
    """The vocabulary of a model, which is an object, or a list of pieces and weights."""
    vocabulary = model.get("vocab") or ()
    return set(vocabulary) if isinstance(vocabulary, dict) else {str(piece) for piece, _ in vocabulary}


def _unknown_id(settings: Settings, model: Mapping[str, Any]) -> int | None:
    """The place of the unknown token in a vocabulary of pieces and their weights."""
    family, pieces = settings.kind.family, [str(piece) for piece, _ in model["vocab"]]
    if family in _UNKNOWN_IDS:
        return _UNKNOWN_IDS[family]
    if family == classes.XLNET:
        return 0
    name = settings.token("unk_token")
    if family == classes.CAMEMBERT:
        return pieces.index(name) if name in pieces else 0
    otherwise = 100 if family == classes.BIG_BIRD else 1
    return pieces.index(name) if name in pieces and model["vocab"][pieces.index(name)][1] == 0 else otherwise


def _normalizer(settings: Settings, saved: Mapping[str, Any]) -> normalizers.Normalizer | None:
    from tokenizers import Regex, normalizers

    family, charsmap = settings.kind.family, _charsmap(saved)
    if family in _WORD_PIECES:
        return normalizers.BertNormalizer(
            clean_text=family != classes.FUNNEL or settings.truth("clean_text", True),
            handle_chinese_chars=settings.truth("tokenize_chinese_chars", True),
            strip_accents=settings.optional_truth("strip_accents"),
            lowercase=settings.truth("do_lower_case", True),
        )
    if family in (classes.ROBERTA, classes.DEBERTA, classes.GPT2):
        return None
    if family == classes.BIG_BIRD:
        return normalizers.Sequence(
            [normalizers.Strip(left=False, right=False), normalizers.Replace(Regex(" {2,}"), "\u2581")]
        )
    if family in (classes.XLM_ROBERTA, classes.CAMEMBERT, classes.T5):
        return None if charsmap is None else charsmap
    lower = [normalizers.Lowercase()] if settings.truth("do_lower_case", family == classes.ALBERT) else []
    if family in (classes.DEBERTA_V2, classes.BARTHEZ):
        rest = [normalizers.Replace(Regex(_SPACES), " "), normalizers.NFC(), normalizers.Strip(left=False, right=True)]
        return normalizers.Sequence([*(lower if family == classes.DEBERTA_V2 else []), *rest])
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if family == classes.REMBERT:
        steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    if family == classes.XLNET or not settings.truth("keep_accents", family == classes.REMBERT):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return normalizers.Sequence([*steps, *lower, *([] if charsmap is None else [charsmap])])


def _charsmap(saved: Mapping[str, Any]) -> normalizers.Normalizer | None:
    """The table of characters that tokenizers of SentencePiece have."""
    from tokenizers import Tokenizer, models

    given = saved.get("normalizer") or {}
    steps = given.get("normalizers", [given])
    found = next((step for step in steps if step.get("type") == "Precompiled"), None)
    if found is None:
        return None
    plain = json.loads(Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str())
    made: normalizers.Normalizer | None = Tokenizer.from_str(json.dumps({**plain, "normalizer": found})).normalizer
    return made


def _pre_tokenizer(settings: Settings) -> pre_tokenizers.PreTokenizer | None:
    from tokenizers import pre_tokenizers

    family = settings.kind.family
    if family in _WORD_PIECES:
        return pre_tokenizers.BertPreTokenizer()
    if family in (classes.ROBERTA, classes.DEBERTA, classes.GPT2):
        return pre_tokenizers.ByteLevel(add_prefix_space=settings.truth("add_prefix_space", False))
    always = family in (classes.T5, classes.XLNET) or settings.truth("add_prefix_space", True)
    otherwise = "first" if family == classes.DEBERTA_V2 else "never"
    words = pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always" if always else otherwise)
    if family in (classes.BIG_BIRD, classes.REMBERT, classes.BARTHEZ):
        return words
    if family == classes.DEBERTA_V2:
        by_mark = [pre_tokenizers.Punctuation("isolated")] if settings.truth("split_by_punct", False) else []
        return pre_tokenizers.Sequence([*by_mark, words])
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), words])
