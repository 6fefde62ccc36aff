# SPDX-License-Identifier: Apache-2.0
"""Where config.json has no entry, the default is that of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.definitions.families import DEFINITIONS
from padfree.builder.definitions.graph import EncoderGraph
from padfree.builder.definitions.keys import Keys
from padfree.builder.definitions.model import Definition, Writing
from padfree.builder.definitions.tensors import Tensors, Weight

NAMES = {"nomic_bert": "attn.Wqkv", "gte": "attention.qkv_proj"}
"""A part of a tensor's name, for families that are told apart by their tensors."""
TYPES = ("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "eurobert", "gemma3_text",
         "gte", "llama", "mistral", "modernbert", "mpnet", "nomic_bert", "qwen2", "qwen3", "roberta",
         "xlm-roberta")  # fmt: skip
NOT_OF_TRANSFORMERS = frozenset(
    {
        # Names in files of the hub, which transformers reads under names of its own.
        "activation_function", "global_rope_theta", "local_rope_theta", "mlp_fc1_bias", "mlp_fc2_bias", "qkv_proj_bias",
        "rotary_emb_base", "rope_theta", "rope_local_base_freq", "global_attn_every_n_layers", "sliding_window_pattern",
        "moe_every_n_layers", "moe_top_k", "num_experts",
        "lora_adaptations", "lora_alpha", "lora_rank",
        # Entries that classes read from a configuration that may lack them.
        "embedding_size", "share_att_key", "norm_rel_ebd", "conv_kernel_size", "is_causal", "head_dim",
    }
)  # fmt: skip
_RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
SAID = {"deberta": _RELATIVE, "deberta-v2": _RELATIVE}
"""Entries that a definition requires."""
DERIVED = frozenset({"layer_types", "num_key_value_heads", "head_dim", "rope_type"})
"""Entries for which None in transformers means the definition's default."""


RELEASES = json.loads((Path(__file__).parents[2] / "fixtures" / "transformers_defaults.json").read_text("utf-8"))
"""What make_defaults.py found in releases of transformers: their defaults by release and type."""
DECIDED_BY_WEIGHTS = {("4.26.1", "roberta", "vocab_size")}
"""Defaults of one release alone; a folder of it whose config.json says nothing has weights of another shape, and is
refused."""


class RecordingKeys(Keys):
    """Keys that record the defaults that were used."""

    def __init__(self, model_type: str) -> None:
        super().__init__(Path("config.json"), {"model_type": model_type, **SAID.get(model_type, {})})
        self.defaults: dict[tuple[str, ...], Any] = {}

    def _value(self, names: Sequence[str], default: Any, fits: Callable[[Any], bool], allowed: str) -> Any:
        self.defaults[tuple(names)] = default
        return super()._value(names, default, fits, allowed)


class AnyTensors(Tensors):
    """Tensors of any name and shape."""

    def below(self, *_prefixes: str, member: str) -> Tensors:
        del member
        return self

    def __contains__(self, name: str) -> bool:
        return name.endswith("mlp.fc11.weight")  # a tensor of nomic's models, whose feed-forward networks are gated

    def take(self, name: str, *shape: int) -> Weight:
        return Weight(name, shape, Path("model.safetensors"), "F32", 0)


def definition_of(model_type: str) -> Definition:
    keys = Keys(Path("config.json"), {"model_type": model_type})
    (actual,) = [
        definition for definition in DEFINITIONS if definition.matches(keys, frozenset({NAMES.get(model_type, "")}))
    ]
    return actual


def read_defaults(model_type: str) -> RecordingKeys:
    """The entries of a config.json that names nothing but its type, after its definition has read them."""
    keys, definition = RecordingKeys(model_type), definition_of(model_type)
    graph = EncoderGraph(takes_types=definition.types(keys) > 1)
    definition.encode(Writing(keys, AnyTensors(()), graph, 2, definition.types(keys)))
    return keys


@pytest.mark.parametrize(("release", "model_type"), [(at, name) for at, types in RELEASES.items() for name in types])
def test_defaults_are_the_same_in_all_releases(release: str, model_type: str) -> None:
    """The one that wrote a config.json may have been any of them."""
    keys, theirs, compared = read_defaults(model_type), RELEASES[release][model_type], 0
    for names, default in keys.defaults.items():
        name = next((name for name in names if name in theirs), "")
        is_derived = name in DERIVED | {"pos_att_type"} and theirs[name] is None
        if not name or name in keys.raw or is_derived or (release, model_type, name) in DECIDED_BY_WEIGHTS:
            continue
        assert (list(default) if isinstance(default, tuple) else default) == theirs[name], names
        compared += 1
    assert compared >= 7


@pytest.mark.needs_torch
@pytest.mark.parametrize("model_type", TYPES)
def test_defaults(model_type: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    wanted, keys = CONFIG_MAPPING[model_type](), read_defaults(model_type)
    compared = 0
    for names, default in keys.defaults.items():
        name = next((name for name in names if hasattr(wanted, name)), None)
        if name is None:
            assert NOT_OF_TRANSFORMERS.issuperset(names), names
            continue
        theirs = getattr(wanted, name)
        if name in NOT_OF_TRANSFORMERS or name in keys.raw or (name in DERIVED and theirs is None):
            continue
        results = list(default) if isinstance(default, (list, tuple)) else default
        assert results == theirs, names
        compared += 1
    assert compared >= 7
