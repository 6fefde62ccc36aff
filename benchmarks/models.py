# SPDX-License-Identifier: Apache-2.0
"""Encoders of transformers with fixed seeds, in which every parameter matters, as files to measure."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

VOCAB_SIZE = 30522
MAX_POSITIONS = 1024  # enough for every sweep; only a table's size depends on it
SCORE_GAIN = 3.5
"""Query and key weights are drawn this much wider than by transformers: attention scores then spread (standard
deviation above 3), so that a wrong scale or mask cannot hide in a nearly uniform softmax."""
NORM = re.compile(r"(norm|layernorm|layer_norm\w*)\.weight$", re.IGNORECASE)
QUERY_OR_KEY = re.compile(r"(query|key|[qk]_lin|query_proj|key_proj|[qk]_proj|Wqkv|attn\.[qk])\.weight$")
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


@dataclass(frozen=True)
class Files:
    """A model as users have it: the exported file, and the folder from save_pretrained."""

    onnx: Path
    folder: Path


def sizes(layers: int, hidden: int, heads: int) -> dict[str, int]:
    """The sizes of a configuration, under the names that most families use."""
    return {
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": MAX_POSITIONS,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": 4 * hidden,
    }


MODELS: Mapping[str, Callable[[], Any]] = {
    "bert-base": lambda: transformers.BertConfig(**sizes(12, 768, 12)),
    "bert-large": lambda: transformers.BertConfig(**sizes(24, 1024, 16)),
    "minilm": lambda: transformers.BertConfig(**sizes(6, 384, 12)),  # also the cross-encoders of ms-marco
    "bge-small": lambda: transformers.BertConfig(**sizes(12, 384, 12)),
    "distilbert": lambda: transformers.DistilBertConfig(
        vocab_size=VOCAB_SIZE, max_position_embeddings=MAX_POSITIONS, n_layers=6, dim=768, n_heads=12, hidden_dim=3072
    ),
    "albert": lambda: transformers.AlbertConfig(**sizes(12, 768, 12), embedding_size=128),
    "deberta": lambda: transformers.DebertaV2Config(
        **sizes(12, 768, 12),
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_buckets=256,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
        position_biased_input=False,
        type_vocab_size=0,
    ),
    "mpnet": lambda: transformers.MPNetConfig(**sizes(12, 768, 12)),
    "t5": lambda: transformers.T5Config(
        vocab_size=VOCAB_SIZE, d_model=768, d_kv=64, d_ff=3072, num_layers=12, num_heads=12
    ),  # only the encoder is used
    "modernbert": lambda: transformers.ModernBertConfig(),  # 22 layers, E 768, attention to all tokens in every third
    "nomic": lambda: transformers.NomicBertConfig(),  # 12 layers, E 768, rotary embeddings, gated
}


def build(name: str, seed: int = 0) -> Any:
    """A model in fp32 on the CPU, in eval mode; biases, norms and token types are as random as the weights."""
    torch.manual_seed(seed)
    config = MODELS[name]()
    eager = name in ("deberta", "mpnet")  # these have no other attention
    family = transformers.AutoModelForTextEncoding if name == "t5" else transformers.AutoModel
    model = family.from_config(config, **({"attn_implementation": "eager"} if eager else {})).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if NORM.search(parameter_name):
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            elif "relative_attention_bias" in parameter_name:
                parameter.copy_(torch.randn_like(parameter))
            elif parameter_name.endswith("bias") or "embeddings" in parameter_name:
                parameter.copy_(0.1 * torch.randn_like(parameter))
            elif QUERY_OR_KEY.search(parameter_name):
                parameter.mul_(SCORE_GAIN * (768 / config.hidden_size) ** 0.5)
    return model


def make(name: str, folder: Path) -> Files:
    """Writes a model into a folder, once."""
    files = Files(folder / f"{name}.onnx", folder / name)
    if not files.onnx.exists():
        transformers.utils.logging.disable_progress_bar()
        model = build(name)
        model.save_pretrained(files.folder)
        export(model, files.onnx)
    return files


class ExportedModel(torch.nn.Module):  # type: ignore[misc]
    """A model that takes and returns tensors by position, as the tracing exporter needs."""

    def __init__(self, model: Any, names: list[str], outputs: list[str]) -> None:
        super().__init__()
        self.model, self.names, self.outputs = model, names, outputs
        self.eval()  # the exporter resets every submodule to the mode of the outermost one

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The model's outputs in order."""
        result = self.model(**dict(zip(self.names, tensors, strict=True)))
        return tuple(result[name] for name in self.outputs)


def export(model: Any, path: Path) -> None:
    """Exports a model as torch's TorchScript exporter does by default: dynamic batch and sequence axes."""
    known = inspect.signature(model.forward).parameters
    names = [name for name in INPUTS if name in known]
    if not getattr(model.config, "type_vocab_size", 0):
        names = [name for name in names if name != "token_type_ids"]
    grid = torch.ones(2, 16, dtype=torch.long)
    with torch.inference_mode():
        result = model(**dict.fromkeys(names, grid))
    outputs = [name for name in ("last_hidden_state", "pooler_output") if result.get(name) is not None]
    axes = {0: "batch", 1: "sequence"}
    partial = path.with_suffix(".part")
    torch.onnx.export(
        ExportedModel(model, names, outputs),
        tuple(grid for _ in names),
        str(partial),
        input_names=names,
        output_names=outputs,
        dynamic_axes={name: {0: "batch"} if name == "pooler_output" else axes for name in (*names, *outputs)},
        opset_version=17,
        dynamo=False,
    )
    partial.replace(path)
