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

LIBRARY_FOLLOWED = "transformers 5"
"""The version whose classes these are (5.24)."""
AS_SAVED = ""
"""The family of classes that take tokenizer.json as it is."""
BERT_FRAME = "bert's frame"
"""As tokenizer.json says, but for what stands around texts, which is as in BERT's."""


@dataclass(frozen=True)
class TokenizerClass:
    """A tokenizer class of transformers.

    Attributes:
        name: as tokenizer_config.json has it, without "Fast".
        family: how its tokenizer is built, one of `rebuilding.FAMILIES`; AS_SAVED: as tokenizer.json says.
        token_types: whether its texts have token types, unless `model_input_names` says otherwise.
        defaults: its special tokens.
        constants: settings with a fixed value, whatever tokenizer_config.json says.
    """

    name: str
    family: str = AS_SAVED
    token_types: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, bool] = field(default_factory=dict)

    def difference(self) -> str:
        """How transformers' differs from tokenizer.json, in ways that are not followed; "" where it is followed."""
        if self.name in FILE_UNREAD:
            return "does not read tokenizer.json"
        return "keeps little more than the vocabulary of tokenizer.json" if self.name in BUILT_ANEW else ""


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
_OF_TEXT = dict.fromkeys(("unk_token", "bos_token", "eos_token"), _END_OF_TEXT)
_ENDS_OF_TEXT = {**_OF_TEXT, "pad_token": _END_OF_TEXT}
_LLAMA = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
_GEMMA = {**_LLAMA, "bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "mask_token": "<mask>"}
_T5 = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_MASK = {"content": "<mask>", "lstrip": True, "normalized": True}
_MBART = {**_ROBERTA, "mask_token": _MASK}
_COHERE = {
    "unk_token": "<UNK>", "bos_token": "<BOS_TOKEN>", "eos_token": "<|END_OF_TURN_TOKEN|>", "pad_token": "<PAD>",
    "cls_token": "<CLS>", "sep_token": "<SEP>", "mask_token": "<MASK_TOKEN>",
}  # fmt: skip
_HERBERT = {name: token for name, token in _ROBERTA.items() if name[:3] not in ("bos", "eos")}

PLAIN = TokenizerClass("TokenizersBackend")
_FAMILIES = (
    TokenizerClass("BertTokenizer", "bert", True, _BERT),
    TokenizerClass("DistilBertTokenizer", "bert", False, _BERT),
    TokenizerClass("MPNetTokenizer", "mpnet", False, {**_ROBERTA, "unk_token": "[UNK]"}),
    TokenizerClass("FunnelTokenizer", "funnel", False, {**_ROBERTA, "sep_token": "<sep>", "cls_token": "<cls>"}),
    TokenizerClass("SplinterTokenizer", "splinter", False, {**_BERT, "question_token": "[QUESTION]"}),
    TokenizerClass("RobertaTokenizer", "roberta", False, _ROBERTA),
    TokenizerClass("DebertaTokenizer", "deberta", True, {**_BERT, **_ENDS}),
    TokenizerClass("GPT2Tokenizer", "gpt2", False, _OF_TEXT),
    TokenizerClass("XLMRobertaTokenizer", "xlm-roberta", False, _ROBERTA),
    TokenizerClass("CamembertTokenizer", "camembert", False, _ROBERTA),
    TokenizerClass("AlbertTokenizer", "albert", False, _ALBERT),
    TokenizerClass("BarthezTokenizer", "barthez", False, _ROBERTA),
    TokenizerClass("ConvBertTokenizer", BERT_FRAME, True, _BERT),
    TokenizerClass("DPRContextEncoderTokenizer", "bert", True, _BERT, {"do_lower_case": True}),
    TokenizerClass("DPRQuestionEncoderTokenizer", "bert", True, _BERT, {"do_lower_case": True}),
    TokenizerClass("FNetTokenizer", AS_SAVED, True, _ALBERT),
    TokenizerClass("DebertaV2Tokenizer", "deberta-v2", True, {**_BERT, **_ENDS}),
    TokenizerClass("XLNetTokenizer", "xlnet", False, {**_ROBERTA, "sep_token": "<sep>", "cls_token": "<cls>"}),
    TokenizerClass("T5Tokenizer", "t5", False, _T5),
    TokenizerClass(
        "BigBirdTokenizer",
        "big_bird",
        False,
        {**_ROBERTA, "sep_token": "[SEP]", "cls_token": "[CLS]", "mask_token": "[MASK]"},
    ),
    TokenizerClass("RemBertTokenizer", "rembert", False, _ALBERT),
    TokenizerClass("LayoutLMv2Tokenizer", "bert", True, _BERT),
    TokenizerClass("MarkupLMTokenizer", AS_SAVED, True),
    TokenizerClass(
        "BlenderbotTokenizer", "blenderbot", False, {**_ROBERTA, "mask_token": {**_MASK, "normalized": False}}
    ),
    TokenizerClass("CLIPTokenizer", "clip", False, {**_ENDS_OF_TEXT, "bos_token": "<|startoftext|>"}),
    TokenizerClass("CodeGenTokenizer", "gpt2", False, _OF_TEXT),
    TokenizerClass("CohereTokenizer", "cohere", False, _COHERE),
    TokenizerClass("GPTNeoXTokenizer", "gpt_neox", False, {**_OF_TEXT, "pad_token": "<|padding|>"}),
    TokenizerClass("GemmaTokenizer", "gemma", False, _GEMMA),
    TokenizerClass("HerbertTokenizer", "herbert", False, _HERBERT),
    TokenizerClass("LasrTokenizer", "lasr", False, _T5),
    TokenizerClass("LlamaTokenizer", "llama", False, _LLAMA),
    TokenizerClass("MBart50Tokenizer", "mbart50", False, {**_MBART, "bos_token": None}),
    TokenizerClass("MBartTokenizer", "mbart", False, _MBART),
    TokenizerClass("NllbTokenizer", "nllb", False, _MBART),
    TokenizerClass("NougatTokenizer", "nougat", False, {**_LLAMA, "pad_token": "<pad>"}),
    TokenizerClass("OpenAIGPTTokenizer", "openai-gpt", False, {"unk_token": "<unk>"}),
    TokenizerClass("PegasusTokenizer", "pegasus", False, {**_T5, "mask_token": "<mask_2>"}),
    TokenizerClass("Qwen2Tokenizer", "qwen2", False, {**_ENDS_OF_TEXT, "bos_token": None}),
    TokenizerClass("Qwen3_5Tokenizer", "qwen3_5", False, {**_ENDS_OF_TEXT, "bos_token": None}),
    TokenizerClass("ReformerTokenizer", "reformer", False, {"eos_token": "</s>", "unk_token": "<unk>"}),
    TokenizerClass("Siglip2Tokenizer", "siglip2", False, _GEMMA),
    TokenizerClass("Tipsv2Tokenizer", "tipsv2", False, {"unk_token": "<unk>", "pad_token": "<pad>"}),
    TokenizerClass("VideoPrismTokenizer", "videoprism", False, _T5),
    TokenizerClass("XGLMTokenizer", "xglm", False, {**_ROBERTA, "mask_token": None}),
)
_ALIASES: Mapping[str, tuple[str, ...]] = {
    "BertTokenizer": (
        "ElectraTokenizer",
        "LayoutLMTokenizer", "LxmertTokenizer", "MobileBertTokenizer", "SqueezeBertTokenizer",
    ),
    "RobertaTokenizer": ("BartTokenizer", "LEDTokenizer", "LongformerTokenizer", "MvpTokenizer"),
}  # fmt: skip
_FAMILY_BY_CLASS = {item.name: item for item in _FAMILIES}
_FAMILY_BY_CLASS |= {alias: _FAMILY_BY_CLASS[name] for name, aliases in _ALIASES.items() for alias in aliases}
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
    "BlenderbotTokenizer": ("blenderbot",),
    "CLIPTokenizer": (
        "aimv2", "clip", "clipseg", "groupvit", "omdet-turbo", "oneformer", "owlv2", "owlvit", "sam3", "sam3_video",
        "xclip",
    ),
    "CohereTokenizer": ("aya_vision", "cohere", "cohere2"),
    "GPTNeoXTokenizer": ("falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"),
    "GemmaTokenizer": (
        "diffusion_gemma", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "recurrent_gemma",
        "shieldgemma2", "t5gemma", "zaya",
    ),
    "HerbertTokenizer": ("herbert",), "LasrTokenizer": ("lasr_ctc", "lasr_encoder"),
    "LlamaTokenizer": ("idefics", "idefics2"), "MBart50Tokenizer": ("mbart50",), "MBartTokenizer": ("mbart",),
    "NllbTokenizer": ("nllb", "nllb-moe"), "NougatTokenizer": ("nougat", "pp_formulanet"),
    "OpenAIGPTTokenizer": ("openai-gpt",), "PegasusTokenizer": ("pegasus",),
    "Qwen2Tokenizer": (
        "audioflamingo3", "colqwen2", "cosmos3_omni", "dots3_note", "fun_asr_nano", "hunyuan_vl", "internvl",
        "lighton_ocr", "moss_transcribe_diarize", "ovis2", "qianfan_ocr", "qwen2", "qwen2_5_omni", "qwen2_5_vl",
        "qwen2_audio", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_asr", "qwen3_moe", "qwen3_next", "qwen3_omni_moe",
        "qwen3_vl", "qwen3_vl_moe", "vibevoice",
    ),
    "Qwen3_5Tokenizer": ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp"),
    "ReformerTokenizer": ("reformer",), "Siglip2Tokenizer": ("siglip2",), "Tipsv2Tokenizer": ("tipsv2",),
    "VideoPrismTokenizer": ("videoprism",), "XGLMTokenizer": ("xglm",),
}  # fmt: skip
_OF_MODEL = {model: name for name, models in _OF_MODELS.items() for model in models}
_OF_MODEL |= {model: name for table in (BUILT_ANEW, FILE_UNREAD) for name, models in table.items() for model in models}


def class_of(model_type: str | None, class_name: str | None) -> TokenizerClass:
    """The class of a folder's tokenizer.

    Args:
        model_type: that of config.json.
        class_name: the `tokenizer_class` of tokenizer_config.json, or else of config.json.
    """
    if model_type in SAVED_ALONE:
        return PLAIN
    name = (class_name or _OF_MODEL.get(model_type or "", PLAIN.name)).removesuffix("Fast")
    plain = name.startswith(("PreTrained", "Tokenizers"))
    return _FAMILY_BY_CLASS.get(name, PLAIN if plain else TokenizerClass(name, token_types=name in WITH_TYPES))
