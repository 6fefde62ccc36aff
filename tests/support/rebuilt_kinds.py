# SPDX-License-Identifier: Apache-2.0
"""Folders whose tokenizer class builds its tokenizer anew, which differs from the one in tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

from .tokenizer_kinds import LETTERS, Kind, bytes_of, pieces

SPACE = "\u2581"
_END = "<|endoftext|>"
_ENT = {
    "__type": "AddedToken", "content": "<ent>", "lstrip": True, "rstrip": False, "normalized": False,
    "single_word": False, "special": True,
}  # fmt: skip


def merges_of(*specials: str, by_bytes: bool = True, more: tuple[str, ...] = ()) -> Tokenizer:
    """SentencePiece's merges in a file unlike what any class builds: words are cut, and no space is put before them."""
    letters = [SPACE, *LETTERS, *LETTERS.upper(), *",.!()'\"-`<>/_|", "é", "ï"]
    merges = [("c", "a"), ("ca", "t"), (SPACE, "t"), (SPACE + "t", "h"), (SPACE + "th", "e"), (SPACE, "cat")]
    merges += [("r", "a"), (SPACE, SPACE), ("i", "n"), ("ra", "in")]
    numbers = [f"<0x{number:02X}>" for number in range(256)] if by_bytes else []
    listed = dict.fromkeys([*specials, *numbers, *letters, *("".join(pair) for pair in merges), *more])
    tokenizer = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(listed)}, merges, ignore_merges=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.add_special_tokens([AddedToken(token, special=True, rstrip=token == specials[-1]) for token in specials])
    first, last = specials[0], specials[-1]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}", pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in dict.fromkeys((first, last))],
    )  # fmt: skip
    return tokenizer


def merges_with_ends(*specials: str) -> Tokenizer:
    """Merges of words that end in a marker."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "é", "ï"]
    merges = [("c", "a"), ("ca", "t</w>"), ("t", "h"), ("th", "e</w>"), ("r", "a")]
    words = ["".join(pair) for pair in merges]
    listed = dict.fromkeys([*specials, *letters, *(f"{letter}</w>" for letter in letters), *words])
    tokenizer = Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(listed)}, merges, end_of_word_suffix="</w>")
    )
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(specials))
    return tokenizer


def _bytes(*specials: str) -> Callable[[], Tokenizer]:
    """Byte-level merges with a space before each text, whatever the class does."""

    def make() -> Tokenizer:
        result = bytes_of(prefix=True, specials=(*specials, "<mask>"))
        result.normalizer = normalizers.Lowercase()
        result.post_processor = processors.ByteLevel(trim_offsets=False)
        return result

    return make


def _weights(*specials: str) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        return pieces(specials, (f"{specials[0]} $A", "$A $B"), normalizer=normalizers.Lowercase())

    return make


def _merges(*specials: str, **options: Any) -> Callable[[], Tokenizer]:
    return lambda: merges_of(*specials, **options)


def _kind(name: str, make: Callable[[], Tokenizer], tokenizer: str, **settings: Any) -> Kind:
    return Kind(name, make, {"tokenizer_class": tokenizer, **settings})


_LLAMA = _merges("<unk>", "<s>", "</s>")
_GEMMA = _merges("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
_NLLB = _merges("<s>", "<pad>", "</s>", "<unk>", "eng_Latn", "fra_Latn", "<mask>", by_bytes=False)
_QWEN = _bytes(_END, "<|im_start|>", "<|im_end|>")
_COHERE = _bytes("<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>")
_MBART = _weights("<s>", "<pad>", "</s>", "<unk>", "en_XX", "de_DE", "<mask>")
_T5 = _weights("<pad>", "</s>", "<unk>")

REBUILT_KINDS = (
    _kind("llama", _LLAMA, "LlamaTokenizer"),
    _kind("llama_legacy", _LLAMA, "LlamaTokenizerFast", legacy=True, add_eos_token=True, eos_token="</s>"),
    _kind("llama_no_prefix", _LLAMA, "LlamaTokenizer", add_prefix_space=False, truncation_side="left"),
    _kind("llama_of_bytes", _QWEN, "LlamaTokenizer"),
    _kind("gemma", _GEMMA, "GemmaTokenizerFast", add_bos_token=True),
    Kind("gemma_of_model_type", _GEMMA, None, {"model_type": "gemma3_text"}),
    _kind("gemma_added", _GEMMA, "GemmaTokenizer", additional_special_tokens=["<ent>"], mask_token=_ENT),
    _kind("siglip2", _GEMMA, "Siglip2Tokenizer"),
    _kind("nllb", _NLLB, "NllbTokenizer", src_lang="fra_Latn"),
    _kind("nllb_legacy", _NLLB, "NllbTokenizerFast", legacy_behaviour=True, extra_special_tokens=["fra_Latn"]),
    _kind("reformer", _merges("<unk>", "</s>"), "ReformerTokenizer", eos_token="</s>"),
    _kind("tipsv2", _merges("<pad>", "<unk>"), "Tipsv2Tokenizer", do_lower_case=False),
    _kind("qwen2", _QWEN, "Qwen2Tokenizer", additional_special_tokens=["<|im_start|>"]),
    _kind("qwen2_prefix", _QWEN, "Qwen2TokenizerFast", add_prefix_space=True, mask_token=_ENT),
    Kind("qwen2_of_model_type", _QWEN, {"padding_side": "left"}, {"model_type": "qwen3"}),
    _kind("qwen3_5", _QWEN, "Qwen3_5Tokenizer"),
    _kind("gpt_neox", _bytes(_END, "<|padding|>"), "GPTNeoXTokenizer"),
    _kind("codegen", _bytes(_END), "CodeGenTokenizer", model_input_names=["input_ids", "token_type_ids"]),
    _kind("cohere", _COHERE, "CohereTokenizer", ent_token=_ENT),
    _kind("blenderbot", _bytes("<s>", "<pad>", "</s>", "<unk>"), "BlenderbotTokenizer"),
    _kind("nougat", _bytes("<s>", "<pad>", "</s>", "<unk>"), "NougatTokenizer"),
    _kind("gpt2_ignores_merges_in_file", _bytes(_END), "GPT2Tokenizer"),
    _kind("clip", lambda: merges_with_ends("<|startoftext|>", _END), "CLIPTokenizer"),
    _kind("herbert", lambda: merges_with_ends("<s>", "<pad>", "</s>", "<unk>", "<mask>"), "HerbertTokenizerFast"),
    _kind("openai_gpt", lambda: merges_with_ends("<unk>"), "OpenAIGPTTokenizer", model_input_names=["token_type_ids"]),
    _kind("mbart", _MBART, "MBartTokenizer", src_lang="de_DE"),
    _kind("mbart_by_default", _MBART, "MBartTokenizerFast", additional_special_tokens=["<ent>"]),
    _kind("mbart50", _MBART, "MBart50Tokenizer", src_lang="de_DE", truncation_side="left"),
    _kind("pegasus", _weights("<pad>", "</s>", "<unk>", "<mask_2>"), "PegasusTokenizer", offset=5),
    _kind("xglm", _weights("<s>", "<pad>", "</s>", "<unk>"), "XGLMTokenizer", add_prefix_space=False),
    _kind("lasr", _weights("<pad>", "</s>", "<unk>", "<x>"), "LasrTokenizer", extra_ids=2),
    _kind("videoprism", _T5, "VideoPrismTokenizer", extra_ids=1),
    _kind("t5_extra_ids", _T5, "T5TokenizerFast", extra_ids=3),
    _kind("t5_other_end", _T5, "T5Tokenizer", eos_token="<unk>"),
    Kind("t5_specials_map", _T5, {"tokenizer_class": "T5Tokenizer", "extra_ids": 2}, None,
         {"eos_token": "</s>", "additional_special_tokens": ["<ent>"]}),
    Kind("specials_map_against_settings", _QWEN,
         {"tokenizer_class": "Qwen2Tokenizer", "additional_special_tokens": []}, None,
         {"additional_special_tokens": ["<ent>"]}),
    Kind("added_token_at_another_id", _LLAMA, {"tokenizer_class": "LlamaTokenizer"}, None, None, {"</s>": 400}),
    Kind("no_frame_and_types", lambda: _without_frame(_QWEN()),
         {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}),
)  # fmt: skip


def _without_frame(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.post_processor = processors.Sequence([])
    return tokenizer
