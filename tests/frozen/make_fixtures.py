# SPDX-License-Identifier: Apache-2.0
"""Made tests/frozen/files at commit 6346721a: `python -m tests.frozen.make_fixtures`.

Run again, it would show what today's code writes, and prove nothing about the files that exist.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from padfree.builder.engine.engine_builder import BuiltEngine
from padfree.builder.triton import ServingOptions, write_repository
from padfree.bulk import Request
from padfree.contract.metadata import Profile
from padfree.onnx_tools import rewrite, save_model
from padfree.onnx_tools.synthetic import bert_model
from padfree.runtime import Session

from tests.support.bulk_jobs import run_here, texts, write_embedder, write_lines

FILES = Path(__file__).with_name("files")
INPUT, ROWS, SHARD_ROWS, KEPT_PARTS = "input.jsonl", 60, 10, 3
HALF_DONE = Path("/data/frozen")
"""A fixed place, since manifests hold paths."""
LENGTHS = (3, 1, 7)
PLAN = b"stands for a plan"


def write_packed(path: Path) -> dict[str, Any]:
    """Writes a packed BERT of one layer and its results for a few sequences; returns the model's metadata."""
    model = bert_model(1, 16, 2, 32, 100, 16)
    save_model(rewrite(model, precision="fp32").model, path)
    ids = [np.arange(1, 1 + length, dtype=np.int32) for length in LENGTHS]
    session = Session(path)
    results = session.run({"input_ids": ids, "token_type_ids": [np.zeros_like(row) for row in ids]})
    arrays = {f"{name}.{at}": row for name, rows in results.items() for at, row in enumerate(rows)}
    np.savez_compressed(path.with_suffix(".npz"), **arrays)  # type: ignore[arg-type]
    described: dict[str, Any] = json.loads({item.key: item.value for item in onnx.load(path).metadata_props}["padfree"])
    return described


def write_sidecar(path: Path, described: dict[str, Any]) -> None:
    """Writes a plan that holds no engine, and its metadata."""
    from padfree.builder.engine.build import write_plan  # type: ignore[attr-defined]  # where it was then

    builder: Any = SimpleNamespace(
        tensorrt_version="10.13.3.9",
        device=SimpleNamespace(name="NVIDIA H100 80GB HBM3", compute_capability="9.0"),
        phases=SimpleNamespace(seconds={"parse": 1.5, "engine": 60.25}),
    )
    profile = Profile(min_tokens=1, opt_tokens=60, max_tokens=100, max_batch=12, max_seq_len=16)
    built = BuiltEngine(PLAN, {"PadfreeEmbedding": 1, "PadfreeAttention": 1})
    write_plan(path, built, described, profile, builder, {"linear": "padfree", "norms": "folded"})


def write_half_done(folder: Path) -> None:
    """Writes a bulk job of which only the first parts exist."""
    folder.mkdir()
    write_embedder(folder / "model.onnx")
    rows = [{"id": f"row {at}", "text": text} for at, text in enumerate(texts(ROWS))]
    write_lines(folder / INPUT, rows)
    run_here(request(folder))
    for part in sorted((folder / "out").glob("part-*"))[KEPT_PARTS:]:
        part.unlink()
    (folder / "out" / "_report.json").unlink()


def request(folder: Path) -> Request:
    """The job of `write_half_done`."""
    return Request(
        (str(folder / INPUT),), str(folder / "out"), folder / "model.onnx", id_column="id", shard_rows=SHARD_ROWS
    )


def main() -> None:
    """Writes all the files."""
    shutil.rmtree(FILES, ignore_errors=True)
    FILES.mkdir()
    described = write_packed(FILES / "packed.onnx")
    write_sidecar(FILES / "model.plan", described)
    write_half_done(HALF_DONE)
    shutil.move(HALF_DONE, FILES / "bulk")
    with tempfile.TemporaryDirectory() as scratch:
        tokenizer = _tokenizer(Path(scratch))
        write_repository(FILES / "packed.onnx", FILES / "triton", ServingOptions("bert", tokenizer=tokenizer))
    (FILES / "triton" / "padfree.tar").unlink()  # the sources as they were then
    (FILES / "triton" / "bert" / "1" / "model.onnx").unlink()  # the same file as packed.onnx
    (FILES / "model.plan").rename(FILES / "plan")
    (FILES / "model.plan.json").rename(FILES / "plan.json")
    for path in sorted(FILES.rglob("*.onnx")):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
        path.unlink()


def _tokenizer(folder: Path) -> Path:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words = [*special, *(f"word{number}" for number in range(94))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.add_special_tokens(special)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


if __name__ == "__main__":
    main()
