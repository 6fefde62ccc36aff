# SPDX-License-Identifier: Apache-2.0
"""Encoders that padfree's definitions write, at the sizes of the hub's models, with random weights and without torch.

Names and shapes of tensors are those that a definition takes; weights are drawn as in benchmarks.models.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from padfree.builder.definitions.families import DEFINITIONS
from padfree.builder.definitions.graph import EncoderGraph
from padfree.builder.definitions.keys import Keys
from padfree.builder.definitions.model import Writing
from padfree.builder.definitions.tensors import Tensors, Weight
from padfree.builder.folders.source import opened
from padfree.onnx_tools import load_model, save_model

from tests.support.safetensors_files import write_tensors

SCORE_GAIN = 2.0
"""As in benchmarks.models: scores are spread, so that a wrong scale or mask cannot hide in a uniform softmax.

With 3.5 as there, GTE's 12 layers multiply roundings: transformers' own answers in fp16 were 0.2 of a column off, and
are 0.01 now.
"""
MIXING_GAIN = 0.3
"""The gain of projections after attention, chosen so that Jina's 24 layers do not make all tokens alike."""
_VOCABULARY = 30_528
_GTE = {
    "model_type": "gte", "vocab_size": _VOCABULARY, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "type_vocab_size": 0, "max_position_embeddings": 8192,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
}  # fmt: skip
CONFIGS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "nomic-v1.5": {
            "model_type": "nomic_bert", "activation_function": "swiglu", "n_embd": 768, "n_head": 12, "n_layer": 12,
            "n_inner": 3072, "n_positions": 8192, "vocab_size": _VOCABULARY, "qkv_proj_bias": False,
            "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_base": 1000, "type_vocab_size": 2,
        },
        "gte-base": _GTE,
        "jina-v3": {
            "model_type": "jina_embeddings_v3", "vocab_size": _VOCABULARY, "hidden_size": 1024,
            "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096, "type_vocab_size": 1,
            "max_position_embeddings": 8194,
        },
        "qwen3-0.6b": {
            "model_type": "qwen3", "vocab_size": 151_669, "hidden_size": 1024, "num_hidden_layers": 28,
            "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}, "tie_word_embeddings": True,
        },
        "qwen3-4b": {
            "model_type": "qwen3", "vocab_size": 8192, "hidden_size": 2560, "num_hidden_layers": 4,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 9728,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0}, "tie_word_embeddings": True,
        },
        "embedding-gemma": {
            "model_type": "gemma3_text", "vocab_size": 262_144, "hidden_size": 768, "num_hidden_layers": 24,
            "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 1152,
            "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "sliding_window": 512,
            "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 4, "use_bidirectional_attention": True,
            "max_position_embeddings": 2048,
        },
    }
)  # fmt: skip
"""Sizes of the hub's nomic-embed-text-v1.5, gte-base-en-v1.5, jina-embeddings-v3 (with fewer words),
Qwen3-Embedding-0.6B, Qwen3-Embedding-4B (4 of its 36 layers, fewer words) and embeddinggemma-300m."""
_FAMILIES = ("mlp.fc11.weight", "attn.Wqkv.weight", "attention.qkv_proj.weight", "mixer.Wqkv.weight")
"""Names by which definitions recognise files."""


class WantedTensors(Tensors):
    """Tensors of any name, which record what is taken."""

    def __init__(self, wanted: dict[str, tuple[int, ...]], there: frozenset[str], prefix: str = "") -> None:
        super().__init__(())
        self._wanted, self._there, self._place = wanted, there, prefix

    def below(self, *prefixes: str, member: str) -> WantedTensors:
        """The tensors below the first prefix."""
        del member
        return WantedTensors(self._wanted, self._there, self._place + prefixes[0])

    def __contains__(self, name: str) -> bool:
        return name in self._there

    def take(self, name: str, *shape: int) -> Weight:
        """A tensor of this shape."""
        self._wanted[self._place + name] = shape
        return Weight(self._place + name, shape, Path(), "F32", 0)


def shapes_of(config: Mapping[str, Any], there: frozenset[str] = frozenset(_FAMILIES)) -> Mapping[str, tuple[int, ...]]:
    """Names and shapes of the tensors that a definition takes; the names in `there` decide which definition it is."""
    keys, wanted = Keys(Path("config.json"), config), dict[str, tuple[int, ...]]()
    (definition,) = [item for item in DEFINITIONS if item.matches(keys, there)]
    graph = EncoderGraph(takes_types=definition.types(keys) > 1)
    definition.encode(Writing(keys, WantedTensors(wanted, there), graph, 2, definition.types(keys)))
    return wanted


def draw(name: str, shape: tuple[int, ...], gain: float = 1.0) -> npt.NDArray[np.float32]:
    """A tensor's numbers, which are always the same; weights of norms lie around `gain`."""
    numbers = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape, np.float32)
    if len(shape) == 1:
        numbers *= np.float32(0.2 if name.endswith("weight") else 0.1)
        numbers += np.float32(gain if name.endswith("weight") else 0)
    elif "embed" in name:
        numbers *= np.float32(0.1)
    else:
        numbers *= np.float32(0.02 * (SCORE_GAIN if "qkv" in name.lower() else 1))
        numbers *= np.float32(MIXING_GAIN if "out_proj" in name or "o_proj" in name else 1)
    return numbers


def write_folder(config: Mapping[str, Any], folder: Path) -> Path:
    """Writes a model's folder."""
    gain = 0.0 if config["model_type"].startswith("gemma") else 1.0  # Gemma multiplies by 1 + w
    tensors = {name: draw(name, shape, gain) for name, shape in shapes_of(config).items()}
    write_tensors(folder / "model.safetensors", tensors)
    (folder / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
    return folder


def make(name: str, folder: Path) -> Path:
    """Writes a model's folder and its padded graph into `folder`, once; returns the graph's file."""
    file = folder / f"{name}.onnx"
    if not file.exists():
        with opened(write_folder(CONFIGS[name], folder / name)) as source:
            save_model(load_model(source.path), file)
    return file
