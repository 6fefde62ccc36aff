# SPDX-License-Identifier: Apache-2.0
"""jina-reranker-v2: XLM-RoBERTa under the names of Jina v3, with fused projections; its config.json has no type."""

from __future__ import annotations

from ..encoder import check_keys, embed, encoded_rows, encoder_tensors, sizes_of, token_types
from ..heads import heads
from ..keys import Keys
from ..model import Definition, EncoderRows, Writing
from .jina_v3 import layers
from .roberta import CLASSES, positions_of

_VOCABULARY = 250_002
_CODE = frozenset({"XLMRobertaModel"})


def _encode(writing: Writing) -> EncoderRows:
    keys, sizes = writing.keys, sizes_of(writing.keys)
    check_keys(keys)
    keys.only(emb_pooler=None)
    keys.ignore("use_flash_attn", "use_reentrant")
    tensors = encoder_tensors(writing, "roberta.")
    x = embed(
        writing,
        tensors,
        sizes,
        vocabulary=_VOCABULARY,
        positions=positions_of(keys),
        rows=None,
        norm="emb_ln",
    )
    all_layers = layers(tensors, sizes, keys.size("num_hidden_layers"))
    return encoded_rows(writing, tensors, sizes, x, all_layers, ("pooler.", "lm_head."))


def _matches(keys: Keys, names: frozenset[str]) -> bool:
    classes_by_task = keys.raw.get("auto_map")
    code = str(classes_by_task.get("AutoModel", "") if isinstance(classes_by_task, dict) else "").rpartition(".")[2]
    is_jina = keys.raw.get("model_type") in (None, "xlm-roberta") and code in _CODE
    is_absolute = keys.raw.get("position_embedding_type") == "absolute"
    return is_jina and is_absolute and any("mixer.Wqkv" in name for name in names)


JINA_RERANKER = Definition(
    "Jina reranker v2",
    _matches,
    _encode,
    token_types,
    heads(CLASSES),
    _CODE,
)
