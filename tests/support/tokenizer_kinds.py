# SPDX-License-Identifier: Apache-2.0
"""Folders with a small tokenizer of each kind that AutoTokenizer reads: tokenizer.json and the files next to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz"
WORDS = ("cat", "mat", "rain", "sat", "the", "un", "##ing", "##s", "Cat", "Rain", "café", "cafe", "naïve", "naive")
TEXTS = (
    "", "the cat sat", "The Cat SAT on the mat", "raining cats, and mats!", "café naïve", "日本 rain", "a  b\tc\nd",
    "[MASK] the <mask> cat </s>", " leading and trailing ", "``the'' cat", "x<ent>y <ENT> z", "co-cat (mat)...",
    "the cat sat on the mat the cat sat on the mat the cat sat on the mat",
)  # fmt: skip
PAIRS = (("the cat", "sat on the mat"), ("", "rain"), ("a b c d e f g h i j", "the rain the rain the rain the rain"))
MOST = 12
"""The number of tokens to which long texts are cut."""


@dataclass(frozen=True)
class Kind:
    """One folder: its tokenizer, and the contents of its JSON files (None: there is no such file)."""

    name: str
    make: Callable[[], Tokenizer]
    settings: Mapping[str, Any] | None = field(default_factory=dict)
    model: Mapping[str, Any] | None = None
    specials: Mapping[str, Any] | None = None
    added: Mapping[str, int] | None = None

    def write(self, folder: Path) -> Path:
        """Writes the folder with all its files."""
        folder.mkdir(parents=True, exist_ok=True)
        self.make().save(str(folder / "tokenizer.json"))
        for name, content in (
            ("tokenizer_config.json", self.settings),
            ("config.json", self.model),
            ("special_tokens_map.json", self.specials),
            ("added_tokens.json", self.added),
        ):
            if content is not None:
                (folder / name).write_text(json.dumps(content), encoding="utf-8")
        return folder


def _vocabulary(*specials: str) -> dict[str, int]:
    pieces = [
        *specials,
        *LETTERS,
        *(f"##{letter}" for letter in LETTERS),
        *LETTERS.upper(),
        *",.!()'\"-`<>",
        *WORDS,
        "日",
        "本",
    ]
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


def bert(
    *, lower: bool = True, types: int = 1, frame: bool = True, added: bool = True, more: tuple[str, ...] = ()
) -> Tokenizer:
    """A tokenizer like BERT's: WordPiece."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *more]
    tokenizer = Tokenizer(models.WordPiece(_vocabulary(*specials), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lower)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    if added:
        tokenizer.add_special_tokens(specials)
    if frame:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS]:0 $A:0 [SEP]:0",
            pair=f"[CLS]:0 $A:0 [SEP]:0 $B:{types} [SEP]:{types}",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    return tokenizer


def _splinter() -> Tokenizer:
    """Splinter's tokenizer.json, without the question that its class puts between pairs."""
    return bert(more=("[QUESTION]",))


def words(*, cut: str | None = None, end: bool = True) -> Tokenizer:
    """A tokenizer of whole words, as small tests use them."""
    tokenizer = Tokenizer(
        models.WordLevel(_vocabulary("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    tail = " [SEP]" if end else ""
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"[CLS] $A{tail}", pair=f"[CLS] $A [SEP] $B:1{' [SEP]:1' if end else ''}",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    if cut is not None:
        tokenizer.enable_truncation(9, direction=cut)
        tokenizer.enable_padding(pad_id=0)
    return tokenizer


def bytes_of(
    *, prefix: bool = False, specials: tuple[str, ...] = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
) -> Tokenizer:
    """A tokenizer like RoBERTa's: byte-level BPE."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("c", "a"),
        ("ca", "t"),
        ("\u0120", "t"),
        ("\u0120t", "h"),
        ("\u0120th", "e"),
        ("\u0120", "cat"),
        ("r", "a"),
        ("\u0120", "ra"),
    ]
    pieces = [*specials, *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(specials[:-1]))
    tokenizer.add_special_tokens([AddedToken(specials[-1], lstrip=True, special=True)])
    if specials[0] == "<s>":
        tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=prefix)
    else:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 0), ("[SEP]", 2)]
        )
    return tokenizer


def pieces(
    specials: tuple[str, ...], frame: tuple[str, str] | None, *, normalizer: Any = None, unknown: int | None = None
) -> Tokenizer:
    """A tokenizer like SentencePiece's: Unigram."""
    listed = [*((name, 0.0) for name in specials), ("\u2581", -3.0)]
    listed += [
        (f"\u2581{word}", -4.0) for word in ("cat", "mat", "rain", "sat", "the", "Cat", "a", "b", "cafe", "naive")
    ]
    listed += [(letter, -6.0) for letter in [*LETTERS, *LETTERS.upper(), *",.!()'\"-", "é", "ï"]]
    unknown = specials.index("<unk>" if "<unk>" in specials else "[UNK]") if unknown is None else unknown
    tokenizer = Tokenizer(models.Unigram(listed, unk_id=unknown))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(list(specials))
    if frame is not None:
        numbers = [(name, specials.index(name)) for name in dict.fromkeys(" ".join(frame).split()) if name in specials]
        tokenizer.post_processor = processors.TemplateProcessing(single=frame[0], pair=frame[1], special_tokens=numbers)
    return tokenizer


_XLM = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_XLM_FRAME = ("<s> $A </s>", "<s> $A </s> </s> $B </s>")
_ALBERT = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
_DEBERTA = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
_FRAME = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]")


def _kind(kind: str, **settings: Any) -> dict[str, Any]:
    return {"tokenizer_class": kind, **settings}


def _bert(name: str = "BertTokenizer", **settings: Any) -> dict[str, Any]:
    tokens = {
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    return _kind(name, **{**tokens, **settings})


_ENT = {
    "content": "<ent>",
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "single_word": False,
    "special": True,
}
_GENERIC = "PreTrainedTokenizerFast"

KINDS = (
    Kind("bert", bert, _bert(do_lower_case=True)),
    Kind("bert_fast_name", bert, _bert("BertTokenizerFast")),
    Kind("bert_cased_by_settings", bert, _bert(do_lower_case=False)),
    Kind("bert_lower_by_default", lambda: bert(lower=False), _bert()),
    Kind("bert_keeps_accents", bert, _bert(strip_accents=False)),
    Kind("bert_strips_accents_cased", lambda: bert(lower=False), _bert(do_lower_case=False, strip_accents=True)),
    Kind("bert_chinese_together", bert, _bert(tokenize_chinese_chars=False)),
    Kind("bert_left", bert, _bert(truncation_side="left")),
    Kind("bert_padding_left", bert, _bert(padding_side="left")),
    Kind("bert_without_types", bert, _bert(model_input_names=["input_ids", "attention_mask"])),
    Kind("bert_other_frame_in_file", lambda: bert(types=0), _bert()),
    Kind("bert_without_frame", lambda: bert(frame=False), _bert()),
    Kind("bert_added_tokens", bert, _bert(added_tokens_decoder={"1": {**_ENT, "content": "[UNK]"}, "130": _ENT})),
    Kind("bert_more_special_tokens", bert, _bert(additional_special_tokens=["<ent>"])),
    Kind("bert_extra_special_tokens", bert, _bert(extra_special_tokens=["<ENT>"])),
    Kind(
        "bert_specials_map",
        lambda: bert(added=False),
        _kind("BertTokenizer"),
        None,
        {"mask_token": {**_ENT, "content": "[MASK]", "lstrip": True}, "additional_special_tokens": ["<ent>"]},
    ),
    Kind("bert_added_tokens_file", bert, _bert(), None, None, {"<ent>": 140}),
    Kind("bert_of_model_type", lambda: bert(lower=False), None, {"model_type": "bert"}),
    Kind("distilbert", bert, _bert("DistilBertTokenizer")),
    Kind("distilbert_model_with_bert", bert, _bert(), {"model_type": "distilbert"}),
    Kind("electra", bert, _bert("ElectraTokenizer")),
    Kind(
        "modernbert_says_bert",
        lambda: bert(lower=False),
        _bert("PreTrainedTokenizerFast"),
        {"model_type": "modernbert"},
    ),
    Kind(
        "mpnet",
        bert,
        _kind(
            "MPNetTokenizer",
            cls_token="[CLS]",
            sep_token="[SEP]",
            bos_token="[CLS]",
            eos_token="[SEP]",
            pad_token="[PAD]",
            mask_token="[MASK]",
            unk_token="[UNK]",
        ),
    ),
    Kind(
        "funnel",
        bert,
        _kind(
            "FunnelTokenizer",
            **{name: f"[{name[:3].upper()}]" for name in ("cls_token", "sep_token", "pad_token", "unk_token")},
            mask_token="[MASK]",
            bos_token="[CLS]",
            eos_token="[SEP]",
        ),
    ),
    Kind("words_generic", words, _bert(_GENERIC)),
    Kind("words_backend", words, _bert("TokenizersBackend", truncation_side="left")),
    Kind("words_generic_with_types", words, _bert(_GENERIC, model_input_names=["input_ids", "token_type_ids"])),
    Kind("words_unknown_class", words, _bert("NobodysTokenizer")),
    Kind("words_cut_left_in_file", lambda: words(cut="left"), _bert(_GENERIC)),
    Kind("words_cut_right_by_settings", lambda: words(cut="left"), _bert(_GENERIC, truncation_side="right")),
    Kind("words_do_lower_case", words, _bert(_GENERIC, do_lower_case=True)),
    Kind("words_add_eos", lambda: words(end=False), _bert(_GENERIC, add_eos_token=True, eos_token="[SEP]")),
    Kind("words_add_bos", words, _bert(_GENERIC, add_bos_token=True, bos_token="[MASK]")),
    Kind("words_ent_normalized", words, _bert(_GENERIC, added_tokens_decoder={"150": {**_ENT, "lstrip": True}})),
    Kind("words_model_specific_token", words, _bert(_GENERIC, ent_token="<ent>")),
    Kind("roberta", bytes_of, _kind("RobertaTokenizer")),
    Kind("roberta_prefix", bytes_of, _kind("RobertaTokenizer", add_prefix_space=True)),
    Kind("roberta_no_prefix_by_settings", lambda: bytes_of(prefix=True), _kind("RobertaTokenizerFast")),
    Kind("longformer", bytes_of, _kind("LongformerTokenizer", truncation_side="left")),
    Kind("roberta_generic", lambda: bytes_of(prefix=True), _kind(_GENERIC, cls_token="<s>")),
    Kind(
        "deberta", lambda: bytes_of(specials=("[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]")), _kind("DebertaTokenizer")
    ),
    Kind("xlm_roberta", lambda: pieces(_XLM, _XLM_FRAME), _kind("XLMRobertaTokenizer")),
    Kind(
        "xlm_roberta_lower_in_file",
        lambda: pieces(_XLM, _XLM_FRAME, normalizer=normalizers.Lowercase()),
        _kind("XLMRobertaTokenizer"),
    ),
    Kind(
        "xlm_roberta_generic_lower",
        lambda: pieces(_XLM, _XLM_FRAME, normalizer=normalizers.Lowercase()),
        _kind(_GENERIC),
    ),
    Kind("camembert", lambda: pieces(_XLM, _XLM_FRAME), _kind("CamembertTokenizer")),
    Kind("albert", lambda: pieces(_ALBERT, _FRAME), _kind("AlbertTokenizer")),
    Kind(
        "albert_cased_accents",
        lambda: pieces(_ALBERT, _FRAME),
        _kind("AlbertTokenizer", do_lower_case=False, keep_accents=True),
    ),
    Kind("deberta_v2", lambda: pieces(_DEBERTA, _FRAME), _kind("DebertaV2Tokenizer")),
    Kind(
        "deberta_v2_lower_marks",
        lambda: pieces(_DEBERTA, _FRAME),
        _kind("DebertaV2Tokenizer", do_lower_case=True, split_by_punct=True),
    ),
    Kind("rembert", lambda: pieces(("<pad>", "[CLS]", "<unk>", "[SEP]", "[MASK]"), _FRAME), _kind("RemBertTokenizer")),
    Kind(
        "xlnet",
        lambda: pieces(("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>"), None),
        _kind("XLNetTokenizer"),
    ),
    Kind(
        "t5",
        lambda: pieces(("<pad>", "</s>", "<unk>"), ("$A </s>", "$A </s> $B </s>")),
        _kind("T5Tokenizer", extra_ids=0, additional_special_tokens=["<extra_id_0>"]),
    ),
    Kind(
        "big_bird",
        lambda: pieces(("<pad>", "</s>", "<s>", "<unk>", "[SEP]", "[MASK]", "[CLS]"), None),
        _kind("BigBirdTokenizer"),
    ),
    Kind("barthez", lambda: pieces(_XLM, _XLM_FRAME), _kind("BarthezTokenizer")),
    Kind("convbert_as_saved", bert, _bert("ConvBertTokenizer", do_lower_case=False)),
    Kind("dpr_cased_by_settings", bert, _bert("DPRContextEncoderTokenizer", do_lower_case=False)),
    Kind("bert_added_and_listed", bert, _bert(additional_special_tokens=["<ent>"]), None, None, {"<ent>": 140}),
    Kind(
        "bert_added_listed_and_named",
        bert,
        _bert(additional_special_tokens=["<ent>"], extra_special_tokens={"ent_token": "<ent>"}),
        None,
        None,
        {"<ent>": 140},
    ),
    Kind("dpr_without_frame", lambda: bert(frame=False), _bert("DPRQuestionEncoderTokenizer"), {"model_type": "dpr"}),
    Kind("splinter", _splinter, _bert("SplinterTokenizer", question_token="[QUESTION]")),
    Kind("splinter_of_model_type", _splinter, None, {"model_type": "splinter"}),
    Kind("splinter_padding_left", _splinter, _bert("SplinterTokenizerFast", padding_side="left", do_lower_case=False)),
    Kind("splinter_types", _splinter, _bert("SplinterTokenizer", model_input_names=["input_ids", "token_type_ids"])),
    Kind("fnet", lambda: pieces(_ALBERT, _FRAME), _kind("FNetTokenizer")),
    Kind(
        "spaces_by_pattern",
        lambda: pieces(_XLM, _XLM_FRAME, normalizer=normalizers.Replace(Regex(" {2,}"), " ")),
        _kind(_GENERIC, model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
    ),
)
