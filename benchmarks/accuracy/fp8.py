# SPDX-License-Identifier: Apache-2.0
"""Published sentence encoders in fp32, fp16 and fp8 or int8: cosines to fp32, and retrieval over texts at hand.

    python -m benchmarks.accuracy.fp8 all-MiniLM-L6-v2/ --texts 600 --json benchmarks/results/local/fp8.jsonl
    python -m benchmarks.accuracy.fp8 all-MiniLM-L6-v2/ --precision int8 --json benchmarks/results/local/int8.jsonl

Takes folders of models with a vector per text, as `padfree optimize` does. A query is the first sentence of a text, its
document is the rest, to be found among all documents by the largest dot product. Scales come from other texts than
those that are scored. Everything runs in onnxruntime on the CPU: fp16 and 8 bits with every tensor rounded as on a GPU.
Retrieval is scored by the share of queries that find their document first, and by nDCG@10, which changes less where a
document falls by one rank. Intervals are those of 95 % by resampling queries; `--documentation numpy sympy` adds what
these packages' strings say, for more queries and narrower intervals, and `--words 40` cuts documents, for less time.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from padfree.builder.calibration import Calibration, quantized_model
from padfree.builder.engine.linear import FOLDED, SEPARATE
from padfree.builder.folders.source import opened
from padfree.contract.quantization import QuantizationInfo
from padfree.onnx_tools import RewriteOptions, load_model, rewrite, save_model
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.precision.rounding import with_rounding
from padfree.onnx_tools.quantization import FORMATS, QuantizationOptions
from padfree.runtime import Session
from padfree.runtime.plan_files import parse_metadata
from padfree.runtime.texts import TextReader

from benchmarks.command import json_parser, keep

from .pretrained_models import cosines
from .texts import documentation_of, texts_at_hand

WIDE = ("fp32", "fp16")
GOALS: Mapping[str, tuple[float, float]] = MappingProxyType({"fp8": (0.997, 0.7), "int8": (0.995, 1.0)})
"""Mean cosine to fp32, and how many points of retrieval may be lost."""
CALIBRATED, SHORTEST, BATCH = 200, 60, 32
SAMPLES = 2000
DEPTH = 10
"""The last rank at which a document counts in nDCG."""
_SENTENCE_BREAK = re.compile(r"(?<=[.!?:])\s+")

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Pair:
    """A query and the document that it should find."""

    query: str
    document: str


def pairs(count: int, packages: Sequence[str], words: int | None = None) -> tuple[list[Pair], list[str]]:
    """`count` pairs of different documents, cut to `words` words each, and other texts, whole, to calibrate with."""
    result, others = dict[str, Pair](), list[str]()
    documentation = [text for package in packages for text in documentation_of(package)]
    for number, text in enumerate(dict.fromkeys([*texts_at_hand(8 * count), *documentation])):
        query, document = (*_SENTENCE_BREAK.split(text, maxsplit=1), "")[:2]
        if number % 4 == 0:
            others.append(text)
        elif len(query) >= SHORTEST // 3 and len(document) >= SHORTEST:
            short = " ".join(document.split()[:words])
            result.setdefault(short, Pair(query, short))
    return list(result.values())[:count], others[:CALIBRATED]


@dataclass(frozen=True)
class Variant:
    """What is measured beside fp32.

    Attributes:
        options: how GEMMs are quantised.
        norms: what computes norms, as `padfree build --norms` says.
        with_fp16: whether fp16 is measured, too.
    """

    options: QuantizationOptions
    norms: str = FOLDED
    with_fp16: bool = True


def models(
    path: Path, texts: Sequence[str], folder: Path, variant: Variant
) -> tuple[dict[str, Path], QuantizationInfo]:
    """The model in every precision, packed, as it runs on a CPU; and what the quantised file records."""
    precision = variant.options.number_format.precision
    wide = WIDE if variant.with_fp16 else WIDE[:1]
    output = {name: folder / f"{name}.onnx" for name in (*wide, precision)}
    save_model(rewrite(path, verify=False).model, output["fp32"])
    if variant.with_fp16:
        half = rewrite(path, precision="fp16", verify=False).model
        save_model(with_rounding(Model(half), "fp16").proto, output["fp16"])
    data = folder / "calibration.txt"
    data.write_text("\n".join(" ".join(text.split()) for text in texts), "utf-8")
    result = quantized_model(
        Model.of(load_model(path)),
        path,
        Calibration(data, options=variant.options),
        RewriteOptions(strict=True, verify=False),
        norms=variant.norms,
        begin=lambda _: _nothing,
    )
    save_model(with_rounding(result, "fp16").whole(), output[precision])
    with Session(output[precision]) as session:
        said = session.metadata.quantization
    if said is None:
        raise AssertionError("quantised files say so")
    return output, said


def _nothing() -> None:
    """Shows no progress."""


def vectors(path: Path, source: Path, texts: Sequence[str]) -> Array:
    """The model's vectors of all texts, [N, E]; `source` is the file next to the tokenizer."""
    collected: dict[int, Array] = {}
    with Session(path) as session:
        reader = TextReader(source, parse_metadata(dict(session.metadata.raw), str(path)))
        order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
        output = session.metadata.outputs[0].name
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            results = session.run(dict(reader.read([texts[at] for at in chosen]).request))[output]
            collected.update(zip(chosen, results, strict=True))
    return np.stack([collected[at] for at in range(len(texts))])


def ranks(queries: Array, documents: Array) -> Array:
    """How many documents are nearer to each query than its own, int64 [N]."""
    products = queries @ documents.T
    return np.asarray((products > np.diag(products)[:, np.newaxis]).sum(axis=1))


def scores_of(rank: Array) -> dict[str, Array]:
    """Scores of ranks, from 0 to 1, by name: `top_1` and `ndcg_10` (with one right document)."""
    gain = np.where(rank < DEPTH, 1 / np.log2(rank + 2), 0.0)
    return {"top_1": np.asarray(rank == 0, np.float64), f"ndcg_{DEPTH}": gain}


def interval(values: Array) -> tuple[float, float]:
    """The interval with 95 % of the means of resampled values, in points."""
    rng = np.random.default_rng(0)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(SAMPLES)]
    low, high = np.percentile(np.asarray(means) * 100, [2.5, 97.5])
    return float(low), float(high)


def measure(
    folder: Path, variant: Variant, count: int, packages: Sequence[str], words: int | None = None
) -> dict[str, Any]:
    """The record of one model."""
    scored, texts = pairs(count, packages, words)
    with tempfile.TemporaryDirectory(prefix="padfree-fp8-") as scratch, opened(folder) as source:
        path = source.path
        result, said = models(path, texts, Path(scratch), variant)
        sides = {
            name: [vectors(file, path, [getattr(pair, side) for pair in scored]) for side in ("query", "document")]
            for name, file in result.items()
        }
    return record_of(folder, variant, sides, said) | {
        "documentation": list(packages),
        "words": words,
        "calibration": {"texts": len(texts), "tokens": said.tokens, "margin": said.margin},
    }


def record_of(
    folder: Path, variant: Variant, sides: Mapping[str, Sequence[Array]], said: QuantizationInfo
) -> dict[str, Any]:
    """What the vectors of queries and documents in each precision give, and what the quantised file says."""
    precision = variant.options.number_format.precision
    results = {name: _figures(sides["fp32"], side) for name, side in sides.items()}
    return {
        "case": f"{folder.resolve().name}, {precision}",
        "runner": "onnxruntime, rounded",
        "pairs": len(sides["fp32"][0]),
        "losses": [round(layer.loss, 4) for layer in said.layers if layer.loss is not None],
        "losses_per_token": [
            round(layer.loss_per_token, 4) for layer in said.layers if layer.loss_per_token is not None
        ],
        "share": said.share,
        "least_cosine": variant.options.least_cosine,
        "norms": variant.norms,
        "smoothing": [layer.smoothing for layer in said.layers],
        "kept": dict(said.kept_gemms),
        "precisions": results,
        "passed": _is_passed(results[precision], *GOALS[precision]),
    }


def _figures(reference: Sequence[Array], vectors_of_sides: Sequence[Array]) -> dict[str, Any]:
    """Cosines, and scores beside those of fp32; `against_fp32` is the difference of top-1."""
    cosine = cosines(np.concatenate(reference), np.concatenate(vectors_of_sides))
    result: dict[str, Any] = {"cosine_mean": float(cosine.mean()), "cosine_worst": float(cosine.min())}
    wanted, found = (scores_of(ranks(*side)) for side in (reference, vectors_of_sides))
    for name, values in found.items():
        prefix, difference = "" if name == "top_1" else f"{name}_", values - wanted[name]
        result |= {name: float(values.mean() * 100), f"{name}_interval": interval(values)}
        result[f"{prefix}against_fp32"] = float(difference.mean() * 100)
        result[f"{prefix}against_fp32_interval"] = interval(difference)
    return result


def _is_passed(figures: Mapping[str, Any], least_cosine: float, most_points: float) -> bool:
    return bool(figures["cosine_mean"] >= least_cosine and figures["against_fp32"] >= -most_points)


def main() -> int:
    """Measures and prints; exit code 1 if 8 bits miss a goal."""
    parser = json_parser(__doc__, "one line per model", prog="python -m benchmarks.accuracy.fp8")
    parser.add_argument("models", nargs="+", type=Path, help="folders of models, with their tokenizers")
    parser.add_argument("--precision", choices=tuple(GOALS), default="fp8", help="of the GEMMs (default fp8)")
    parser.add_argument("--texts", type=int, default=600, help="pairs of query and document, at most")
    parser.add_argument("--documentation", nargs="*", default=[], metavar="PACKAGE", help="texts of these packages too")
    parser.add_argument("--words", type=int, metavar="N", help="documents are cut to N words (default: whole)")
    parser.add_argument("--least-cosine", type=float, metavar="X", help="what `padfree build --least-cosine` does")
    parser.add_argument("--norms", choices=(FOLDED, SEPARATE), default=FOLDED, help="what `padfree build --norms` does")
    parser.add_argument("--without-fp16", action="store_true", help="measure only fp32 and 8 bits, in less time")
    arguments = parser.parse_args()
    options = QuantizationOptions(least_cosine=arguments.least_cosine, number_format=FORMATS[arguments.precision])
    variant = Variant(options, arguments.norms, not arguments.without_fp16)
    passed = []
    for path in arguments.models:
        record = measure(path, variant, arguments.texts, arguments.documentation, arguments.words)
        passed.append(record["passed"])
        for name, item in record["precisions"].items():
            low, high = item["against_fp32_interval"]
            cosine = f"cosine mean {item['cosine_mean']:.5f}, worst {item['cosine_worst']:.5f}"
            print(
                f"{path.resolve().name} {name}: {cosine}; top-1 {item['top_1']:.2f} %, {item['against_fp32']:+.2f} "
                f"points to fp32 (95 %: {low:+.2f} to {high:+.2f}) of {record['pairs']} queries",
                flush=True,
            )
        keep(arguments.json, record)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    raise SystemExit(main())
