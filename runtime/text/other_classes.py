# SPDX-License-Identifier: Apache-2.0
"""Classes of transformers 5.24 that take no tokenizer.json as it is, and that are not followed: those get a note."""

from __future__ import annotations

from collections.abc import Mapping

BUILT_ANEW: Mapping[str, tuple[str, ...]] = {
    "BlenderbotTokenizer": ("blenderbot",),
    "CLIPTokenizer": (
        "aimv2", "clip", "clipseg", "groupvit", "omdet-turbo", "oneformer", "owlv2", "owlvit", "sam3", "sam3_video",
        "xclip",
    ),
    "CodeGenTokenizer": (), "CodeLlamaTokenizer": ("code_llama",),
    "CohereTokenizer": ("aya_vision", "cohere", "cohere2"),
    "DPRReaderTokenizer": (), "EsmcTokenizer": ("esmc", "esmfold2"),
    "GPTNeoXTokenizer": ("falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"),
    "GemmaTokenizer": (
        "diffusion_gemma", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text", "recurrent_gemma",
        "shieldgemma2", "t5gemma", "zaya",
    ),
    "HerbertTokenizer": ("herbert",), "LasrTokenizer": ("lasr_ctc", "lasr_encoder"),
    "LayoutLMv3Tokenizer": ("layoutlmv3",), "LayoutXLMTokenizer": ("layoutxlm",),
    "LlamaTokenizer": ("idefics", "idefics2"), "LukeTokenizer": ("luke",), "MBart50Tokenizer": ("mbart50",),
    "MarkupLMTokenizer": ("markuplm",), "MBartTokenizer": ("mbart",),
    "MLukeTokenizer": ("mluke",), "NllbTokenizer": ("nllb", "nllb-moe"),
    "NougatTokenizer": ("nougat", "pp_formulanet"), "OpenAIGPTTokenizer": ("openai-gpt",),
    "PegasusTokenizer": ("pegasus",),
    "Qwen2Tokenizer": (
        "audioflamingo3", "colqwen2", "cosmos3_omni", "dots3_note", "fun_asr_nano", "hunyuan_vl", "internvl",
        "lighton_ocr", "moss_transcribe_diarize", "ovis2", "qianfan_ocr", "qwen2", "qwen2_5_omni", "qwen2_5_vl",
        "qwen2_audio", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_asr", "qwen3_moe", "qwen3_next", "qwen3_omni_moe",
        "qwen3_vl", "qwen3_vl_moe", "vibevoice",
    ),
    "Qwen3_5Tokenizer": ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp"),
    "ReformerTokenizer": ("reformer",), "RoFormerTokenizer": ("roformer",),
    "SeamlessM4TTokenizer": ("seamless_m4t", "seamless_m4t_v2"), "Siglip2Tokenizer": ("siglip2",),
    "Tipsv2Tokenizer": ("tipsv2",), "UdopTokenizer": ("udop",), "VideoPrismTokenizer": ("videoprism",),
    "WhisperTokenizer": ("whisper",), "XGLMTokenizer": ("xglm",),
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
