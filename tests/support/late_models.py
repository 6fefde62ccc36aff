# SPDX-License-Identifier: Apache-2.0
"""Tiny models with a vector for every token, and what PyLate makes of texts (fixtures/make_late_models.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from .folders import TOKENIZER, write_json
from .safetensors_files import write_tensors
from .tiny_folders import draw
from .tiny_folders import read as read_reference

FILE = Path(__file__).resolve().parents[1] / "fixtures" / "late_models.json"
QUERIES = (
    "how warm is it today?",
    "rain",
    "",
    " the cat sat on the mat, and it rained [MASK] the whole day and night ",
)
DOCUMENTS = ("It is warm today, and the sun is out!", "the cat sat on the mat.", "a", "", "rain, rain; and more " * 9,
             "a [MASK] in a text")  # fmt: skip
WIDTH, MARKS = 8, ("[unused0]", "[unused1]")
QUERY_LENGTH, DOCUMENT_LENGTH = 10, 24
COLBERT: Mapping[str, Any] = {
    "query_maxlen": QUERY_LENGTH,
    "doc_maxlen": DOCUMENT_LENGTH,
    "mask_punctuation": True,
    "query_token_id": MARKS[0],
    "doc_token_id": MARKS[1],
    "similarity": "cosine",
    "interaction": "colbert",
    "dim": WIDTH,
}
PYLATE: Mapping[str, Any] = {
    "model_type": "ColBERT",
    "similarity_fn_name": "MaxSim",
    "prompts": {},
    "default_prompt_name": None,
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": QUERY_LENGTH,
    "document_length": DOCUMENT_LENGTH,
    "skiplist_words": [",", ".", "!", ";"],
}
MODELS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "colbert": ("colbert", "bert", {}),
    "colbert_attends": ("colbert", "bert", {"attend_to_mask_tokens": True}),
    "bert": ("pylate", "bert", {}),
    "modernbert": ("pylate", "modernbert", {}),
    "modernbert_attends": ("pylate", "modernbert", {"attend_to_expansion_tokens": True}),
    "modernbert_plain": ("pylate", "modernbert", {"do_query_expansion": False, "skiplist_words": []}),
}
"""Whose folder it is, the encoder's family, and entries in place of COLBERT's or PYLATE's."""


@dataclass(frozen=True)
class LateAnswers:
    """What PyLate makes of QUERIES and DOCUMENTS.

    Attributes:
        query_ids, document_ids: the tokens of each.
        queries, documents: [tokens, WIDTH] each, those that are left out not among them.
    """

    query_ids: list[list[int]]
    document_ids: list[list[int]]
    queries: list[npt.NDArray[np.float32]]
    documents: list[npt.NDArray[np.float32]]


def read(name: str) -> LateAnswers:
    """The answers of one of MODELS."""
    raw = json.loads(FILE.read_text("utf-8"))[name]
    queries, documents = ([np.asarray(rows, np.float32) for rows in raw[key]] for key in ("queries", "documents"))
    return LateAnswers(raw["query_ids"], raw["document_ids"], queries, documents)


def write_late_model(
    name: str, folder: Path, entries: Mapping[str, Any] | None = None, *, scale: int = 1, heads: int = 2
) -> Path:
    """Writes the folder of one of MODELS.

    Args:
        name: which.
        folder: where to.
        entries: about texts, in place of the model's.
        scale: factor of all widths, which are 16 and 24.
        heads: how many attention heads.
    """
    library, family, settings = MODELS[name]
    settings = {**settings, **(entries or {})}
    size = _write_tokenizer(folder, library)
    reference = read_reference(family)
    widths = {key: scale * reference.config[key] for key in ("hidden_size", "intermediate_size")}
    config = {**reference.config, **widths, "vocab_size": size, "num_attention_heads": heads}
    if family == "modernbert":
        config["local_attention"] = 16
    shapes = {key: _shape(key, shape, size, scale) for key, shape in reference.tensors.items()}
    tensors = {key: draw(key, shape) for key, shape in shapes.items()}
    projection = {"linear.weight": draw(f"{family}.linear.weight", (WIDTH, config["hidden_size"]))}
    if library == "colbert":
        config["architectures"] = ["HF_ColBERT"]
        write_json(folder / "artifact.metadata", {**COLBERT, **settings})
        tensors = {**{f"bert.{key}": values for key, values in tensors.items()}, **projection}
    else:
        _write_modules(folder, config["hidden_size"], {**PYLATE, **settings})
        write_tensors(folder / "1_Dense" / "model.safetensors", projection)
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    return folder


def _shape(name: str, shape: tuple[int, ...], vocabulary: int, scale: int) -> tuple[int, ...]:
    """A tensor's shape with other widths, and with the rows of this vocabulary."""
    if "embeddings.weight" not in name:
        return tuple(scale * size for size in shape)
    rows = vocabulary if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")) else shape[0]
    return rows, scale * shape[1]


def _write_tokenizer(folder: Path, library: str) -> int:
    """Writes the tokenizer with markers, as words of the vocabulary or as added tokens; returns how many it has."""
    content = json.loads(TOKENIZER.read_text("utf-8"))
    words = content["model"]["vocab"]
    for mark in MARKS:
        words[mark] = len(words)
    tokenizer = Tokenizer.from_str(json.dumps(content))
    if library == "pylate":
        tokenizer.add_tokens(["[Q] ", "[D] "])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    specials = {f"{key}_token": f"[{key.upper()}]" for key in ("unk", "cls", "sep", "pad", "mask")}
    write_json(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40, **specials},
    )
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def _write_modules(folder: Path, width: int, settings: Mapping[str, Any]) -> None:
    kinds = (("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense"))
    listed = [{"idx": at, "name": str(at), "path": path, "type": kind} for at, (path, kind) in enumerate(kinds)]
    write_json(folder / "modules.json", listed)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": DOCUMENT_LENGTH - 1, "do_lower_case": False})
    write_json(folder / "config_sentence_transformers.json", settings)
    dense = {"in_features": width, "out_features": WIDTH, "bias": False, "use_residual": False}
    identity = {"activation_function": "torch.nn.modules.linear.Identity"}
    write_json(folder / "1_Dense" / "config.json", {**dense, **identity})
