# SPDX-License-Identifier: Apache-2.0
"""jina-reranker-v2: XLM-RoBERTa under the names of Jina v3, with fused projections; its config.json has no type."""

from __future__ import annotations

from ..attention import Scoring, mask
from ..heads import dense_classes, heads
from ..keys import Keys
from ..layers import Norm, add, counted_positions
from ..model import Definition, EncoderRows, Writing
from . import bert
from .jina_v3 import layer_of
from .roberta import tanh

_VOCABULARY = 250_002
_CODE = frozenset({"XLMRobertaModel"})


def _encode(writing: Writing) -> EncoderRows:
    keys, graph, sizes = writing.keys, writing.graph, bert.sizes_of(writing.keys)
    bert.check_keys(keys)
    keys.only(emb_pooler=None)
    keys.ignore("use_flash_attn", "use_reentrant")
    tensors = writing.tensors.below("", "roberta.", member="embeddings.word_embeddings.weight")
    with graph.scope("embeddings"):
        rows = keys.size("max_position_embeddings")
        table = tensors.take("embeddings.position_embeddings.weight", rows, sizes.width)
        where = counted_positions(graph, table, keys.size("pad_token_id", default=1, least=0))
        x = add(graph, *bert.word_and_type(writing, tensors, sizes.width, _VOCABULARY), where)
        x = Norm.of(tensors, "emb_ln", sizes.width, sizes.epsilon).apply(graph, x)
    scoring = Scoring(sizes.heads.size**-0.5, mask(graph))
    for number in range(keys.size("num_hidden_layers")):
        with graph.scope(f"layer.{number}"):
            parts = tensors.below(f"encoder.layers.{number}.", member="mixer.Wqkv.weight")
            x = layer_of(parts, sizes).apply(graph, x, sizes.heads, scoring)
    tensors.ignore("pooler.", "lm_head.")
    return EncoderRows(x, sizes.width, tensors)


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
    bert.token_types,
    heads(dense_classes("classifier.dense", "classifier.out_proj", tanh)),
    _CODE,
)
