# SPDX-License-Identifier: Apache-2.0
"""Small folders laid out like repositories of Hugging Face, with random weights."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, processors

ROOT = Path(__file__).resolve().parents[2]
DEMO_DATA = ROOT / "builder" / "demo" / "data"
ENCODER = DEMO_DATA / "bert_tiny.onnx"  # E 64 and 930 ids, like the tokenizer in the same folder
TOKENIZER = DEMO_DATA / "tokenizer.json"
WIDTH, VOCABULARY, POSITIONS = 64, 930, 512
CONFIG: Mapping[str, Any] = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": POSITIONS,
    "type_vocab_size": 2,
    "pad_token_id": 0,
}


def write_json(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> Path:
    """Writes a file as the library safetensors does."""
    header, begin = {}, 0
    for name, values in tensors.items():
        end = begin + values.nbytes
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(values.tobytes() for values in tensors.values()))
    return path


def write_folder(
    folder: Path,
    *,
    model: Path | None = ENCODER,
    config: Mapping[str, Any] | None = None,
    modules: Sequence[tuple[str, Mapping[str, Any]]] = (),
    max_seq_length: int | None = None,
    settings: Mapping[str, Any] | None = None,
    tokenizer: Path | None = TOKENIZER,
) -> Path:
    """Writes a folder with config.json, tokenizer and onnx/model.onnx; with modules, as sentence-transformers does.

    Args:
        folder: where to write.
        model: the ONNX file; None for none.
        config: entries of config.json, in place of those in CONFIG.
        modules: class of sentence_transformers and configuration of every module after the encoder.
        max_seq_length: of sentence_bert_config.json.
        settings: config_sentence_transformers.json.
        tokenizer: the tokenizer.json; None for none.
    """
    write_json(folder / "config.json", {**CONFIG, **(config or {})})
    if tokenizer is not None:
        shutil.copy(tokenizer, folder / "tokenizer.json")
        write_json(folder / "tokenizer_config.json", {"model_max_length": POSITIONS, "pad_token": "[PAD]"})
    if model is not None:
        (folder / "onnx").mkdir(exist_ok=True)
        shutil.copy(model, folder / "onnx" / "model.onnx")
    if modules:
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        for number, (name, content) in enumerate(modules, 1):
            path = f"{number}_{name}"
            kind = name if "." in name else f"sentence_transformers.models.{name}"
            listed.append({"idx": number, "name": str(number), "path": path, "type": kind})
            write_json(folder / path / "config.json", content)
        write_json(folder / "modules.json", listed)
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    if settings is not None:
        write_json(folder / "config_sentence_transformers.json", settings)
    return folder


def write_dense(folder: Path, number: int, rows: int, width: int, *, bias: bool = True, seed: int = 0) -> None:
    """Writes the weights of the Dense module with this number."""
    rng = np.random.default_rng(seed)
    tensors = {"linear.weight": rng.standard_normal((rows, width), np.float32) / np.float32(np.sqrt(width))}
    if bias:
        tensors["linear.bias"] = rng.standard_normal(rows, np.float32)
    write_safetensors(folder / f"{number}_Dense" / "model.safetensors", tensors)


def write_small_tokenizer(file: Path, size: int) -> Path:
    """Writes a tokenizer of whole words with `size` ids, for [CLS] a [SEP], and [CLS] a [SEP] b [SEP] for pairs."""
    specials = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = [*specials, *(f"word{number}" for number in range(size - len(specials)))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(specials))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.save(str(file))
    return file


def pool(rows: npt.NDArray[Any], mode: str, positions: npt.NDArray[Any] | None = None) -> npt.NDArray[Any]:
    """sentence-transformers' vector [E] of a text's rows [len, E]. Positions count from 1, padding included."""
    weights = (np.arange(1, len(rows) + 1) if positions is None else positions)[:, None]
    result: npt.NDArray[Any] = {
        "cls": lambda: rows[0],
        "lasttoken": lambda: rows[-1],
        "mean": lambda: rows.mean(0),
        "max": lambda: rows.max(0),
        "weightedmean": lambda: (rows * weights).sum(0) / weights.sum(),
        "mean_sqrt_len_tokens": lambda: rows.sum(0) / np.sqrt(len(rows)),
    }[mode]()
    return result
