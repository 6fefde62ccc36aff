# SPDX-License-Identifier: Apache-2.0
"""Classes of transformers 5.24 that take no tokenizer.json as it is, and that are not followed: those are refused."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_ANEW: Mapping[str, tuple[str, ...]] = {
    "CodeLlamaTokenizer": ("code_llama",), "DPRReaderTokenizer": (), "EsmcTokenizer": ("esmc", "esmfold2"),
    "LayoutLMv3Tokenizer": ("layoutlmv3",),
    "LayoutXLMTokenizer": ("layoutxlm",), "LukeTokenizer": ("luke",), "MLukeTokenizer": ("mluke",),
    "MarkupLMTokenizer": ("markuplm",), "RoFormerTokenizer": ("roformer",),
    "SeamlessM4TTokenizer": ("seamless_m4t", "seamless_m4t_v2"), "UdopTokenizer": ("udop",),
    "WhisperTokenizer": ("whisper",),
}  # fmt: skip
"""Class -> types of models that have it; of tokenizer.json these keep the vocabulary, or little more."""

FILE_UNREAD: Mapping[str, tuple[str, ...]] = {
    "BartphoTokenizer": ("bartpho",), "BertGenerationTokenizer": ("bert-generation",),
    "BertJapaneseTokenizer": ("bert-japanese",), "BertTokenizerLegacy": (), "BertweetTokenizer": ("bertweet",),
    "BioGptTokenizer": ("biogpt",), "BlenderbotSmallTokenizer": ("blenderbot-small",), "ByT5Tokenizer": ("byt5",),
    "CTRLTokenizer": ("ctrl",), "CanineTokenizer": ("canine",), "ClvpTokenizer": ("clvp",),
    "CpmAntTokenizer": ("cpmant",), "CpmTokenizer": ("cpm",), "DiaTokenizer": ("dia",), "EsmTokenizer": ("esm",),
    "FSMTTokenizer": ("fsmt",), "FastSpeech2ConformerTokenizer": ("fastspeech2_conformer",),
    "FlaubertTokenizer": ("flaubert",), "GPTNeoXJapaneseTokenizer": ("gpt_neox_japanese",),
    "GPTSw3Tokenizer": ("gpt-sw3",), "M2M100Tokenizer": ("m2m_100",), "MarianTokenizer": ("marian",),
    "MgpstrTokenizer": ("mgp-str",), "MyT5Tokenizer": ("myt5",), "PLBartTokenizer": ("plbart",),
    "PerceiverTokenizer": ("perceiver",), "PhobertTokenizer": ("phobert",), "Pop2PianoTokenizer": (),
    "ProphetNetTokenizer": ("prophetnet",), "RagTokenizer": ("rag",), "RoCBertTokenizer": ("roc_bert",),
    "SiglipTokenizer": ("siglip",), "Speech2TextTokenizer": ("speech_to_text",), "SpeechT5Tokenizer": ("speecht5",),
    "TapasTokenizer": ("tapas",), "VitsTokenizer": ("vits",),
    "Wav2Vec2CTCTokenizer": (
        "data2vec-audio", "hubert", "unispeech", "unispeech-sat", "wav2vec2", "wav2vec2-bert", "wav2vec2-conformer",
    ),
    "Wav2Vec2PhonemeCTCTokenizer": ("wav2vec2_phoneme",), "XLMTokenizer": ("xlm",),
}  # fmt: skip
"""Class -> types of models that have it; written in Python, they read files of their own."""
WITH_TYPES = ("CanineTokenizer", "TapasTokenizer")
"""Those of them whose texts have token types."""
SAVED_ALONE = (
    "arctic", "aria", "beam", "bigbird_pegasus", "camembertv2-base", "canary", "chatlm", "cohere_asr", "ernie4_5",
    "ernie4_5_moe", "flex_olmo", "fuyu", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm4v", "glm4v_moe", "glm_image",
    "glmasr", "got_ocr2", "gpt_bigcode", "gradium_phonon_tts", "granite", "granitemoe", "granitemoehybrid",
    "granitemoeshared", "h2ovl_chat", "hyperclovax", "hyperclovax_vlm", "internlm2", "internlm3", "iquestcoder",
    "jamba", "kimi_k25", "kimi_linear", "kosmos-2", "llava", "llava_next", "mimo_v2_flash", "minicpm3", "minicpm_ocr",
    "minicpmv", "minicpmv4_6", "minicpmv4_7", "minimax_m2", "ministral", "ministral3", "mistral", "mistral3",
    "mistral_large4", "mixtral", "modernbert", "modernbert-decoder", "molmo", "molmo2", "nemo_speechlm", "nemotron",
    "nvfp4", "nystromformer", "olmo2", "olmo3", "olmo_hybrid", "omniasr", "opencua", "openvla", "paddleocr_vl",
    "pegasus_x", "persimmon", "phi3", "phi3_v", "phimoe", "pix2struct", "pixtral", "pocket_tts", "smolvlm", "stablelm",
    "step3_vl", "umt5", "vipllava", "voxtral", "voxtral_realtime", "xlm-roberta-xl",
)  # fmt: skip
"""Types of models whose tokenizer.json always counts as it is."""
