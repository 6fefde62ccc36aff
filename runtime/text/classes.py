# SPDX-License-Identifier: Apache-2.0
"""Which class AutoTokenizer takes for a folder, and what the class makes of a tokenizer.json: as transformers 5 does.

Many classes keep the vocabulary of tokenizer.json alone, and build the rest anew from tokenizer_config.json. Versions
differ: transformers 4 gave token types with every class that named no inputs, and 5 gives none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .other_classes import BUILT_ANEW, FILE_UNREAD, SAVED_ALONE, WITH_TYPES

FOLLOWED = "transformers 5"
"""The version whose classes these are (5.24)."""
AS_SAVED, BERT, MPNET, FUNNEL, SPLINTER, ROBERTA, DEBERTA, GPT2 = (
    "as saved",
    "bert",
    "mpnet",
    "funnel",
    "splinter",
    "roberta",
    "deberta",
    "gpt2",
)
XLM_ROBERTA, CAMEMBERT, ALBERT, DEBERTA_V2 = "xlm-roberta", "camembert", "albert", "deberta-v2"
XLNET, T5, BIG_BIRD, REMBERT, BARTHEZ = "xlnet", "t5", "big_bird", "rembert", "barthez"
BERT_FRAME = "bert's frame"
"""As tokenizer.json says, but for what stands around texts, which is as in BERT's."""


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of transformers.

    Attributes:
        name: as tokenizer_config.json has it, without "Fast".
        family: how its tokenizer is built; AS_SAVED: as tokenizer.json says.
        token_types: whether its texts have token types, unless `model_input_names` says otherwise.
        defaults: its special tokens.
        fixed: settings that are what they are here, whatever tokenizer_config.json says.
    """

    name: str
    family: str = AS_SAVED
    token_types: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, bool] = field(default_factory=dict)

    def difference(self, saved: Mapping[str, Any]) -> str:
        """How transformers' may differ from tokenizer.json, in ways that are not followed; "" where it does not."""
        if self.name in FILE_UNREAD:
            return f"does not read tokenizer.json in {FOLLOWED}"
        by_bytes = any("ByteLevel" in str(saved.get(part)) for part in ("pre_tokenizer", "decoder"))
        if self.name in BUILT_ANEW and not (self.name == "LlamaTokenizer" and by_bytes):
            return f"keeps little more than the vocabulary of tokenizer.json in {FOLLOWED}"
        return ""


_BERT = {
    "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"
}  # fmt: skip
_ROBERTA = {
    "bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "cls_token": "<s>", "unk_token": "<unk>",
    "pad_token": "<pad>", "mask_token": "<mask>",
}  # fmt: skip
_ENDS = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
_ALBERT = {**_BERT, **_ENDS, "unk_token": "<unk>", "pad_token": "<pad>"}
_END_OF_TEXT = "<|endoftext|>"

PLAIN = TokenizerClass("TokenizersBackend")
_FAMILIES = (
    TokenizerClass("BertTokenizer", BERT, True, _BERT),
    TokenizerClass("DistilBertTokenizer", BERT, False, _BERT),
    TokenizerClass("MPNetTokenizer", MPNET, False, {**_ROBERTA, "unk_token": "[UNK]"}),
    TokenizerClass("FunnelTokenizer", FUNNEL, False, {**_ROBERTA, "sep_token": "<sep>", "cls_token": "<cls>"}),
    TokenizerClass("SplinterTokenizer", SPLINTER, False, {**_BERT, "question_token": "[QUESTION]"}),
    TokenizerClass("RobertaTokenizer", ROBERTA, False, _ROBERTA),
    TokenizerClass("DebertaTokenizer", DEBERTA, True, {**_BERT, **_ENDS}),
    TokenizerClass("GPT2Tokenizer", GPT2, False, dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END_OF_TEXT)),
    TokenizerClass("XLMRobertaTokenizer", XLM_ROBERTA, False, _ROBERTA),
    TokenizerClass("CamembertTokenizer", CAMEMBERT, False, _ROBERTA),
    TokenizerClass("AlbertTokenizer", ALBERT, False, _ALBERT),
    TokenizerClass("BarthezTokenizer", BARTHEZ, False, _ROBERTA),
    TokenizerClass("ConvBertTokenizer", BERT_FRAME, True, _BERT),
    TokenizerClass("DPRContextEncoderTokenizer", BERT, True, _BERT, {"do_lower_case": True}),
    TokenizerClass("DPRQuestionEncoderTokenizer", BERT, True, _BERT, {"do_lower_case": True}),
    TokenizerClass("FNetTokenizer", AS_SAVED, True, _ALBERT),
    TokenizerClass("DebertaV2Tokenizer", DEBERTA_V2, True, {**_BERT, **_ENDS}),
    TokenizerClass("XLNetTokenizer", XLNET, False, {**_ROBERTA, "sep_token": "<sep>", "cls_token": "<cls>"}),
    TokenizerClass("T5Tokenizer", T5, False, {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}),
    TokenizerClass(
        "BigBirdTokenizer",
        BIG_BIRD,
        False,
        {**_ROBERTA, "sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    ),
    TokenizerClass("RemBertTokenizer", REMBERT, False, _ALBERT),
    TokenizerClass("LayoutLMv2Tokenizer", BERT, True, _BERT),
    TokenizerClass("MarkupLMTokenizer", AS_SAVED, True),
)
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "BertTokenizer": (
        "ElectraTokenizer",
        "LayoutLMTokenizer", "LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer",
    ),
    "RobertaTokenizer": ("BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"),
}  # fmt: skip
_KNOWN = {item.name: item for item in _FAMILIES}
_KNOWN |= {alias: _KNOWN[name] for name, aliases in _ALIASES.items() for alias in aliases}
_OF_MODELS: Mapping[str, tuple[str, ...]] = {
    "BertTokenizer": (
        "align", "bark", "bert", "blip", "bros", "chinese_clip", "convbert", "distilbert", "electra", "ernie", "flava",
        "git", "grounding-dino", "layoutlm", "megatron-bert", "mm-grounding-dino", "nezha", "nomic_bert", "qdqbert",
        "realm", "retribert", "squeezebert", "tvp", "vilt", "visual_bert", "mobilebert", "lxmert",
    ),
    "RobertaTokenizer": (
        "bart", "bridgetower", "clap", "data2vec-text", "florence2", "ibert", "lilt", "longformer", "mega", "mra",
        "roberta", "roberta-prelayernorm", "led", "mvp",
    ),
    "XLMRobertaTokenizer": ("gte", "jina_embeddings_v3", "metaclip_2", "trocr", "xlm-roberta", "xmod"),
    "GPT2Tokenizer": (
        "blip-2", "codegen", "dbrx", "emu3", "gpt2", "gpt_neo", "gptj", "hyperclovax_vision_v2", "instructblip",
        "instructblipvideo", "jais2", "opt", "phi", "starcoder2",
    ),
    "AlbertTokenizer": ("albert", "yoso"),
    "T5Tokenizer": ("mt5", "musicgen", "musicgen_melody", "switch_transformers", "t5"),
    "DPRQuestionEncoderTokenizer": ("dpr",), "BarthezTokenizer": ("barthez",),
    "BigBirdTokenizer": ("big_bird",), "CamembertTokenizer": ("camembert",), "DebertaTokenizer": ("deberta",),
    "DebertaV2Tokenizer": ("deberta-v2",), "FNetTokenizer": ("fnet",), "FunnelTokenizer": ("funnel",),
    "LayoutLMv2Tokenizer": ("layoutlmv2",), "MPNetTokenizer": ("mpnet",),
    "RemBertTokenizer": ("rembert",), "SplinterTokenizer": ("splinter",), "XLNetTokenizer": ("xlnet",),
}  # fmt: skip
_OF_MODEL = {model: name for name, models in _OF_MODELS.items() for model in models}
_OF_MODEL |= {model: name for table in (BUILT_ANEW, FILE_UNREAD) for name, models in table.items() for model in models}


def class_of(model_type: str | None, named: str | None) -> TokenizerClass:
    """The class of a folder's tokenizer.

    Args:
        model_type: of config.json.
        named: `tokenizer_class` of tokenizer_config.json, or else of config.json.
    """
    if model_type in SAVED_ALONE:
        return PLAIN
    name = (named or _OF_MODEL.get(model_type or "", PLAIN.name)).removesuffix("Fast")
    plain = name.startswith(("PreTrained", "Tokenizers"))
    return _KNOWN.get(name, PLAIN if plain else TokenizerClass(name, token_types=name in WITH_TYPES))
