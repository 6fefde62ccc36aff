# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/models.md from test_families.py: python -m tests.onnx_tools.exports.models_table."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import astuple
from pathlib import Path

from padfree.onnx_tools import CoverageReport, RewriteError, RewriteResult, load_model

from tests.support import exports_table, folding_encoders, pages
from tests.support.families import Case, all_cases, optimum_cases
from tests.support.rewritings import Rewritings

Rewritten = Callable[[Case], RewriteResult]
PAGE = pages.page("models")
HEAD = """# Tested models

This page lists the models whose rewriting is tested, and how much of each is packed. It is for people who want to know
whether their model is likely to be packed. padfree does not recognise architectures by name, so models that are not
listed are treated in the same way.

`python -m tests.onnx_tools.exports.models_table` writes the tables from the files in `tests/fixtures/families`: tiny
encoders with random weights, exported as users export models. `pytest tests/onnx_tools/exports/test_families.py`
rewrites each of them in both interfaces and compares every valid token with the original in onnxruntime. The batches
are ragged; in the padded interface, they also have left padding, holes, full rows and an empty row.

"Linear" is the packed share of the linear layers' multiplications, rounded down ([report](report.md) says what counts).
"Attention" is the number of attentions that PadfreeAttention computes. The others stay padded, between an unpack and a
pack, and the last column gives the reason.

The tables show the packed interface. In the padded interface, masks may have holes. Models with windows or biases by
distance (ModernBERT's local layers, MPNet, T5, DeBERTa) measure distances between slots, so their attention stays
padded there, unless `--masks contiguous` declares that masks have no holes
([masks and positions](../internals/masks-and-positions.md#masks-with-holes)). Then they are packed entirely, too.
"""


MODERNBERT_HEADS = """## Heads on ModernBERT

Classification uses the pooling of its configuration. Sparse prediction does not affect the outputs of a model without
labels. A file that takes labels, and returns rows only for labelled tokens, is refused, because the output does not say
which sequence a row belongs to.
"""


MORE = """## More families

These files are in `tests/fixtures/exports`, made from the code in transformers; the attention with linear biases of
Jina v2 and MosaicBERT was written for the tests. `pytest tests/onnx_tools/exports/test_exports_all.py` compares each
file with the original, sequence by sequence, and verification does so with left-padded masks and masks with holes.
"Attention" counts the packed interface, "under any mask" the padded interface; the rest is packed with `--masks
contiguous`. The TorchScript exporter fails on EmbeddingGemma.
"""


OPTIMIZED = """## Optimised files

These files were exported by optimum and then optimised, by optimum (O1 to O4; O4 is float16) or by onnxruntime's tools:
`extended` is the file that an inference session saves; the others were made by `python -m
onnxruntime.transformers.optimizer` with options for masks (`lengths`, `raw_mask`) and MultiHeadAttention (`mha`). If
attention reads only the lengths of the mask, "masks" says that masks must be right-padded.
`pytest tests/onnx_tools/importing/test_fused_files.py` compares them.
"""


FOLDED = """## What is folded into linear layers

With `PadfreeLinear` (fp16 and bf16 on Hopper), linear layers also compute norms, gates and rotary embeddings
([folding](../internals/linear-folding.md)). For the packed interface of models with two layers (mmBERT: three) and a
width divisible by 64, the table counts linear layers; how many of them are gated feed-forwards, apply RoPE to Q and K,
and normalise their input or residual; and the norms and rotations that keep their own kernels.

The last column counts norms of results before they are added to the residual, which no linear layer can compute:
EmbeddingGemma has them.

In each family, the norm after the last layer keeps its own kernel, because an output needs it. T5, UMT5, ESM-2,
EuroBERT, UltraBERT, mBART and LayoutLM have another one after the embedding. DeBERTa v2, whose first layer has a
convolution over tokens, has one on each side of that sum. Qwen3 and EmbeddingGemma normalise Q and K before RoPE: one
kernel per layer does both, and the table counts it among the rotations.

Builds on Hopper also let the linear layer normalise Q and K before RoPE where heads have 128 columns, as in Qwen3.

`pytest tests/onnx_tools/exports/test_folded_layers.py` compares all answers, in float32 and fp16, and every third
family's in bf16.
"""


def page(rewritings: Rewritings) -> str:
    """The whole page."""
    rewritten = rewritings.of_case
    cases = [case for case in all_cases() if not case.static]
    exported = [case for case in optimum_cases() if not case.level]
    families = [case for case in (*cases, *exported) if case.head == "hidden" and not case.activation]
    order = list(dict.fromkeys(case.family for case in families))
    families.sort(key=lambda case: order.index(case.family))
    heads = [case for case in (*cases, *exported) if case.head != "hidden"]
    order = list(dict.fromkeys(case.head for case in heads))
    heads.sort(key=lambda case: order.index(case.head))
    forms = [case for case in cases if case.activation]
    parts = [
        HEAD,
        "## Families\n",
        _table(families, "family", rewritten),
        "## Heads on BERT\n",
        _table((case for case in heads if case.family == "bert"), "head", rewritten),
        MODERNBERT_HEADS,
        _table((case for case in heads if case.family == "modernbert"), "head", rewritten),
    ]
    parts += [MORE, _more()]
    parts += [OPTIMIZED, _optimized_table((case for case in optimum_cases() if case.level), rewritten)]
    parts += [FOLDED, _fold_cell(rewritings)]
    parts += ["## Forms of BERT\n", _forms(forms, rewritten)]
    parts += ["## Files with fixed sizes\n", _fixed_cell((case for case in all_cases() if case.static), rewritten)]
    return "\n".join(parts)


def _more() -> str:
    """Families by both exporters, as listed in the table of all exports."""
    lines = [
        "| family | exporter | linear | attention | packed entirely | under any mask |",
        "|---|---|---|---|---|---|",
    ]
    for name, actual in exports_table.expected_table().items():
        family, _, exporter = name.rpartition("_")
        if exporter in ("torchscript", "dynamo"):
            packed, padded = actual["packed"], actual["padded"]
            entirely = "yes" if packed["complete"] else "no"
            cells = [family, exporter, packed["linear"], packed["attention"], entirely, padded["attention"]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _fold_cell(rewritings: Rewritings) -> str:
    lines = [
        (
            "| family | linear layers | gated | with RoPE | with a norm | separate norms | separate rotations "
            "| norms of results |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in folding_encoders.NAMES:
        actual = folding_encoders.layers_of(rewritings.of_linear(name).model)
        cells = [name, *(str(count) for count in astuple(actual))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _fixed_cell(cases: Iterable[Case], rewritten: Rewritten) -> str:
    """Files with a fixed batch, a fixed length or both; they give results for sequences padded to the file's size."""
    lines = ["| family | inputs | exporter | linear | rewritten for every size |", "|---|---|---|---|---|"]
    for case in cases:
        model = load_model(case.path)
        dims = model.graph.input[0].type.tensor_type.shape.dim
        sizes = ", ".join(dim.dim_param or str(dim.dim_value) for dim in dims)
        cells = [case.family, f"[{sizes}]", case.exporter]
        try:
            cells += [_share(rewritten(case).report), "yes"]
        except RewriteError:
            cells += ["", "no: refused with the reason"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _table(cases: Iterable[Case], column: str, rewritten: Rewritten) -> str:
    lines = [f"| {column} | exporter | attention by | linear | attention | output | stays padded because |"]
    lines.append("|---|---|---|---|---|---|---|")
    for case in cases:
        report = rewritten(case).report
        actual = report.plugins.get("PadfreeAttention", 0)
        missed = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
        cells = [getattr(case, column), case.exporter, case.attention, _share(report)]
        cells += [
            f"{actual} of {actual + len(missed)}",
            " ".join(sorted(set(report.outputs.values()))),
            _reason(report),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _optimized_table(cases: Iterable[Case], rewritten: Rewritten) -> str:
    lines = ["| family | head | level | fused operators | linear | attention | masks | stays padded because |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for case in cases:
        model = load_model(case.path)
        fused = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
        fused |= {"SimplifiedLayerNormalization"} & {node.op_type for node in model.graph.node}
        report = rewritten(case).report
        actual = report.plugins.get("PadfreeAttention", 0)
        missed = sum(len(item.missed) for item in report.passes if item.name == "attention")
        cells = [case.family, case.head, case.level, ", ".join(sorted(fused)), _share(report)]
        cells += [
            f"{actual} of {actual + missed}",
            "right-padded" if report.right_padded_only else "any",
            _reason(report),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _share(report: CoverageReport) -> str:
    share = report.packed_gemm_share
    return "-" if share is None else f"{math.floor(100 * share)} %"


def _reason(report: CoverageReport) -> str:
    """Why attention stays padded, without naming nodes."""
    missed = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
    return missed[0] if missed else ""


def _forms(cases: list[Case], rewritten: Rewritten) -> str:
    """All choices; the files contain each pair of two choices at least once."""
    lines = [f"{len(cases)} files hold every pair of two of these choices, as far as they go together:\n"]
    for name in ("exporter", "opset", "attention", "dtype", "mask", "activation", "token_types", "external"):
        values = sorted({str(getattr(case, name)) for case in cases})
        lines.append(f"- {name.replace('_', ' ')}: {', '.join(values)}")
    complete = all(rewritten(case).report.complete for case in cases)
    lines.append(f"\nAll of them are packed as a whole: {'yes' if complete else 'no'}.\n")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        PAGE.write_text(page(Rewritings(Path(made))))
