# SPDX-License-Identifier: Apache-2.0
"""Texts per second through sentence-transformers, by itself and with a plan in it.

    python -m benchmarks.integrations.sentence_transformers --json benchmarks/results/local/integrations.jsonl

MiniLM-L6's shape with random weights in fp16: `encode` of 1200 texts of 108,000 tokens in all, and `predict` of 100
pairs of 156 tokens. Beside the plan are sentence-transformers itself with several sizes of batches, and with its
flattening where flash_attn is installed. Every figure is the best of `--rounds`, after two that warm up: everything
from texts to NumPy. `--host` measures on the CPU, with a model that takes no time, what the host costs.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import tokenizers
import torch
import transformers
from padfree.builder import cli
from padfree.sentence_transformers import attach
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling

from benchmarks.command import json_parser, keep

from ..load.texts import spell, text_of
from ..models import MODELS

TEXTS, TOKENS, MOST = 1200, 108_000, 256
PAIRS, PAIR_TOKENS = 100, 156
SPREAD = 0.6  # standard deviation of the logarithm of lengths
BATCHES = (32, 128, 512)
SMALL_VOCABULARY = Path(cli.__file__).parents[1] / "demo" / "data" / "tokenizer.json"
NAMES = ("pad", "cls", "sep", "unk", "mask")
WARM_UP = 2

Model = Any
Work = Callable[[], Any]


def write_models(folder: Path) -> tuple[Path, Path]:
    """Writes a bi-encoder and a cross-encoder of MiniLM-L6's shape."""
    config = MODELS["minilm"]()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(SMALL_VOCABULARY),
        model_max_length=MOST,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        **{f"{name}_token": f"[{name.upper()}]" for name in NAMES},
    )
    torch.manual_seed(0)
    encoder, bi_encoder, cross_encoder = (folder / name for name in ("encoder", "bi_encoder", "cross_encoder"))
    transformers.BertModel(config).save_pretrained(encoder)
    config.num_labels = 1
    transformers.BertForSequenceClassification(config).save_pretrained(cross_encoder)
    for path in (encoder, cross_encoder):
        tokenizer.save_pretrained(path)
    modules = [Transformer(str(encoder)), Pooling(config.hidden_size), Normalize()]
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(str(bi_encoder))
    return bi_encoder, cross_encoder


def write_texts() -> tuple[list[str], list[tuple[str, str]]]:
    """Random texts, and pairs of one query with many texts."""
    tokenizer = tokenizers.Tokenizer.from_file(str(SMALL_VOCABULARY))
    tokenizer.no_padding()
    rng = np.random.default_rng(0)
    words = spell(tokenizer, rng)
    lengths = rng.lognormal(0, SPREAD, TEXTS)
    lengths = np.clip(lengths * (TOKENS / lengths.sum()), 4, MOST).astype(int)
    texts = [text_of(int(length), words, rng) for length in lengths]
    query = text_of(12, words, rng)
    return texts, [(query, text_of(PAIR_TOKENS - 10, words, rng)) for _ in range(PAIRS)]


def best_ms(work: Work, rounds: int) -> float:
    """The shortest time of a call on the clock."""
    times = []
    for _ in range(WARM_UP + rounds):
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times[WARM_UP:])


def originals(kind: type, path: Path) -> Iterator[tuple[str, Model]]:
    """sentence-transformers itself in fp16, and with its flattening if that is available."""
    half = {"torch_dtype": torch.float16}
    yield "itself", kind(str(path), device="cuda", model_kwargs=half)
    if importlib.util.find_spec("flash_attn") is not None:
        flash = {**half, "attn_implementation": "flash_attention_2"}
        yield "itself, flash attention", kind(str(path), device="cuda", model_kwargs=flash)


def plan_of(folder: Path, *, on_gpu: bool) -> Path:
    """An engine in fp16, or a packed file."""
    plan = folder.with_suffix(".plan" if on_gpu else ".onnx")
    command = ["build", "--precision", "fp16", "--max-batch", "512", "--max-tokens", "32768"]
    if cli.main([*(command if on_gpu else ["optimize"]), str(folder), "-o", str(plan)]):
        raise SystemExit(f"{folder}: no plan")
    return plan


def without_model(model: Model, width: int) -> None:
    """Makes the model answer at once, with zeros."""
    name = model.padfree_output
    model[0].model.run = lambda _, seq_lens: {name: torch.zeros(len(seq_lens), width)}


def measure(folder: Path, rounds: int, *, on_gpu: bool) -> Iterator[dict[str, Any]]:
    """One record for each contender and task."""
    bi_encoder, cross_encoder = write_models(folder)
    texts, pairs = write_texts()
    tasks: tuple[tuple[str, type, Path, str, list[Any]], ...] = (
        ("encode", sentence_transformers.SentenceTransformer, bi_encoder, "encode", texts),
        ("predict", sentence_transformers.CrossEncoder, cross_encoder, "predict", pairs),
    )
    for task, kind, path, method, inputs in tasks:
        model = attach(kind(str(path), device="cuda" if on_gpu else "cpu"), plan_of(path, on_gpu=on_gpu))
        if not on_gpu:
            without_model(model, 384 if task == "encode" else 1)
        tokens = model.padfree_tokens.read(inputs, MOST)
        works: dict[str, Work] = {
            "padfree" if on_gpu else "host": partial(getattr(model, method), inputs),
            "tokens alone": partial(model.padfree_tokens.read, inputs, MOST),
        }
        for name, other in originals(kind, path) if on_gpu else ():
            for batch in BATCHES:
                works[f"{name}, batches of {batch}"] = partial(getattr(other, method), inputs, batch_size=batch)
        for who, work in works.items():
            ms = best_ms(work, rounds)
            results = {
                "case": f"{task}, {who}",
                "task": task,
                "who": who,
                "ms": round(ms, 2),
                "a_second": round(1e3 * len(inputs) / ms),
            }
            yield {**results, "tokens": sum(tokens.seq_lens), "inputs": len(inputs)}


def main() -> None:
    """Measures, prints and records."""
    parser = json_parser(__doc__, "one line per measurement")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--host", action="store_true", help="the host alone: no GPU, and a model that takes no time")
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(prefix="padfree-bench-") as name:
        for record in measure(Path(name), arguments.rounds, on_gpu=not arguments.host):
            print(record, flush=True)
            keep(arguments.json, record)


if __name__ == "__main__":
    main()
