# SPDX-License-Identifier: Apache-2.0
"""Published sentence encoders as fp16 engines: the cosines of their embeddings to those of PyTorch in fp32.

    python -m benchmarks.accuracy.pretrained_models --work /tmp/pretrained all-MiniLM-L6-v2/ all-mpnet-base-v2/

Takes folders as sentence-transformers writes them (config.json, model.safetensors, tokenizer.json, modules.json) of
models whose embedding is the mean over tokens. Each is exported with its pooling, rewritten to fp16, built, and run on
texts at hand of very different lengths (benchmarks/accuracy/texts.py). --prepare-only stops before the build: what
--work then holds is all that a machine with a GPU needs, where the command without folders goes on. --without-tensorrt
runs the rewritten files in onnxruntime, with every tensor rounded as on a GPU. Nothing of the models is kept elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from padfree.builder import build_engine
from padfree.onnx_tools import load_model, rewrite, save_model
from padfree.onnx_tools.files.model import Model as OnnxModel
from padfree.onnx_tools.precision.rounding import with_rounding
from padfree.runtime import Session, bounds_of

from benchmarks.command import json_parser, keep

from .texts import texts_at_hand

PRECISION = "fp16"
GOAL = 0.99999
"""Smallest allowed cosine of an embedding to PyTorch's in fp32."""
PACKED, ANSWERS, PLAN = f"packed_{PRECISION}.onnx", "answers.npz", f"packed_{PRECISION}.plan"
TORCH_BATCH = 16
RUN_BATCH = 32

Array = np.ndarray[Any, Any]


def prepare(folder: Path, work: Path, count: int) -> None:
    """Writes what the measurement needs: the rewritten file, the texts' token ids, and PyTorch's embeddings."""
    from .model import embedding_model, export

    model, longest = embedding_model(folder), _json(folder / "sentence_bert_config.json")["max_seq_length"]
    rows = tokenize(folder / "tokenizer.json", texts_at_hand(count), longest)
    work.mkdir(parents=True, exist_ok=True)
    exported = work / "exported.onnx"
    export(model, str(exported), ("embedding",))
    save_model(rewrite(exported, precision=PRECISION, strict=True).model, work / PACKED)
    exported.unlink()
    np.savez(
        work / ANSWERS,
        input_ids=np.concatenate(rows),
        seq_lens=np.asarray([len(row) for row in rows]),
        embeddings=in_torch(model, rows),
        torch_fp16=in_torch(model.half(), rows),
    )


def in_torch(model: Any, rows: Sequence[Array]) -> Array:
    """PyTorch's embeddings of all texts, padded, with texts of similar lengths together."""
    import torch

    from .model import grid

    order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
    results: dict[int, Array] = {}
    with torch.inference_mode():
        for start in range(0, len(order), TORCH_BATCH):
            chosen = order[start : start + TORCH_BATCH]
            results.update(zip(chosen, model(*grid([rows[row] for row in chosen])).float().numpy(), strict=True))
    return np.stack([results[row] for row in range(len(rows))])


def tokenize(tokenizer: Path, texts: Sequence[str], longest: int) -> list[Array]:
    """The token ids of every text, cut to the model's length."""
    from tokenizers import Tokenizer

    result = Tokenizer.from_file(str(tokenizer))
    result.no_padding()
    result.enable_truncation(longest)
    return [np.asarray(item.ids, np.int32) for item in result.encode_batch(list(texts))]


def measure(work: Path, timing_cache: str, *, without_tensorrt: bool) -> dict[str, Any]:
    """Runs a prepared model; returns its record."""
    saved = np.load(work / ANSWERS)
    rows = np.split(saved["input_ids"], bounds_of(saved["seq_lens"])[1:-1])
    longest = int(saved["seq_lens"].max())
    if without_tensorrt:
        path = work / f"rounded_{PRECISION}.onnx"
        save_model(with_rounding(OnnxModel(load_model(work / PACKED)), PRECISION).proto, path)
    else:
        path = work / PLAN
        build_engine(work / PACKED, path, max_batch=RUN_BATCH, max_seq_len=longest, timing_cache=timing_cache)
    with Session(path, cuda_graphs=False) as session:  # each size occurs once
        result = np.stack(session.run(rows)["embedding"])
    values, of_torch = (cosines(saved["embeddings"], item) for item in (result, saved["torch_fp16"]))
    return {
        "case": f"{work.name}, {PRECISION}",
        "runner": "onnxruntime, rounded" if without_tensorrt else "TensorRT",
        "texts": len(rows),
        "tokens": int(saved["seq_lens"].sum()),
        "longest": longest,
        **figures(values),
        "torch_fp16": figures(of_torch),
        "goal": GOAL,
        "passed": bool(values.min() >= GOAL),
    }


def figures(values: Array) -> dict[str, Any]:
    """What is recorded about the cosines of all texts."""
    below = int((~(values >= GOAL)).sum())
    return {"cosine_worst": float(values.min()), "cosine_mean": float(values.mean()), "below_goal": below}


def cosines(wanted: Array, result: Array) -> Array:
    """The cosine of every row to its counterpart, in float64."""
    a, b = wanted.astype(np.float64), result.astype(np.float64)
    cosines_of_rows = (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))
    return np.asarray(cosines_of_rows)


def main() -> int:
    """Prepares what is missing and measures; exit code 1 if a cosine misses the goal."""
    parser = json_parser(__doc__, "one line per model", prog="python -m benchmarks.accuracy.pretrained_models")
    parser.add_argument("folders", nargs="*", type=Path, help="models to prepare; none: what --work has")
    parser.add_argument("--work", type=Path, required=True, help="folder for rewritten files, answers and plans")
    parser.add_argument("--texts", type=int, default=800, help="how many")
    parser.add_argument("--prepare-only", action="store_true", help="build and measure nothing")
    parser.add_argument("--without-tensorrt", action="store_true", help="run the rewritten files in onnxruntime")
    parser.add_argument("--timing-cache", default="default", help="TensorRT's timing cache: a file, or 'default'")
    arguments = parser.parse_args()
    for folder in arguments.folders:
        prepare(folder, arguments.work / folder.name, arguments.texts)
    if arguments.prepare_only:
        return 0
    passed = []
    for packed in sorted(arguments.work.glob(f"*/{PACKED}")):
        record = measure(packed.parent, arguments.timing_cache, without_tensorrt=arguments.without_tensorrt)
        passed.append(record["passed"])
        print(
            f"{record['case']}: worst cosine {record['cosine_worst']:.7f}, mean {record['cosine_mean']:.7f} over "
            f"{record['texts']} texts of up to {record['longest']} tokens, {record['below_goal']} below the goal; "
            f"{record['runner']}; PyTorch fp16: worst {record['torch_fp16']['cosine_worst']:.7f}",
            flush=True,
        )
        keep(arguments.json, record)
    return 0 if passed and all(passed) else 1


def _json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


if __name__ == "__main__":
    raise SystemExit(main())
