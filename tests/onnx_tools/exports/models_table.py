# SPDX-License-Identifier: Apache-2.0
"""Writes docs/reference/models.md from test_families.py: python -m tests.onnx_tools.exports.models_table."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import astuple
from pathlib import Path

from padfree.onnx_tools import CoverageReport, RewriteError, RewriteResult, load_model

from tests.support import exports_table, folded, pages
from tests.support.families import Case, all_cases, optimum_cases
from tests.support.rewritings import Rewritings

Rewritten = Callable[[Case], RewriteResult]
PAGE = pages.page("models")
HEAD = """# Tested models

The tables are written by `python -m tests.onnx_tools.exports.models_table` from the files in
`tests/fixtures/families`. These are tiny encoders with random weights, all of which matter, exported as users export
models. `pytest tests/onnx_tools/exports/test_families.py` rewrites each of them in both interfaces and compares every
kept token with the original in onnxruntime. The batches are ragged, and in the padded interface they also have left
padding, holes, full rows and an empty one. An architecture is not recognised by its name, so that models which are not
in this list go the same way.

"Linear" is the packed share of the linear layers' multiplications, rounded down ([report.md](report.md) says what
counts). "Attention" says how many of the attentions PadfreeAttention computes. The others stay padded between an unpack
and a pack, with the reason given.

The tables show the packed interface. In the padded one masks may have holes, and models with windows or biases by
distance (ModernBERT's local layers, MPNet, T5, DeBERTa) measure distances between slots: those attentions stay padded
there unless `--masks contiguous` says that masks have none
([masks and positions](../internals/masks-and-positions.md#masks-with-holes)). With it they are packed entirely, too.
"""


MODERNBERT_HEADS = """## Heads on ModernBERT

Classification pools as its configuration says. Sparse prediction has no part in what a model gives without labels; a
file that takes labels, and gives rows for labelled tokens alone, is refused: nobody can tell which sequence has which.
"""


MORE = """## More families

These are in `tests/fixtures/exports`, by the code that transformers has of them; Jina v2's and MosaicBERT's attention
with linear biases is written for the tests. `pytest tests/onnx_tools/exports/test_exports_all.py` compares each file
with the original on every sequence alone, and the verification of each does so under left-padded and holed masks.
"Attention" counts the packed interface's, "under any mask" the padded one's: what is left there is packed with `--masks
contiguous`. The TorchScript exporter fails on EmbeddingGemma.
"""


OPTIMIZED = """## Optimised files

Exports of optimum after its optimiser (O1 to O4; O4 is float16) or onnxruntime's tools: `extended` is what an inference
session saves, the others what `python -m onnxruntime.transformers.optimizer` makes with options for masks (`lengths`,
`raw_mask`) and MultiHeadAttention (`mha`). "masks" says whether attention takes the mask or its lengths alone, so that
masks must be right-padded. `pytest tests/onnx_tools/importing/test_fused_files.py` compares them.
"""


FOLDED = """## What products take in

With `PadfreeLinear` (fp16 and bf16 on Hopper) linear layers compute what surrounds them
([linear layers](../internals/linear.md)). The table counts, for the packed interface and two layers (of mmBERT three),
of a width that 64 divides: linear layers; those of them that are gated feed-forwards, that apply RoPE to Q and K, and
that norm what they multiply or add; and the norms and rotations that have kernels of their own beside them.

The norm after the last layer is one of these in each family, because an output is made of it. T5, UMT5, ESM-2,
EuroBERT, UltraBERT, mBART and LayoutLM have one after the embedding. DeBERTa v2, whose first layer has a convolution
over tokens, has one at either end of its sum. Qwen3 and EmbeddingGemma norm Q and K before RoPE. EmbeddingGemma norms
what its layers make before it is added, and no linear layer can take that in.
`pytest tests/onnx_tools/exports/test_folded_layers.py` compares all answers, in float32, fp16 and bf16.
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
    parts += [OPTIMIZED, _optimized((case for case in optimum_cases() if case.level), rewritten)]
    parts += [FOLDED, _folded(rewritings)]
    parts += ["## Forms of BERT\n", _forms(forms, rewritten)]
    parts += ["## Files with fixed sizes\n", _fixed((case for case in all_cases() if case.static), rewritten)]
    return "\n".join(parts)


def _more() -> str:
    """Families by both exporters, as the table of all exports has them."""
    lines = [
        "| family | exporter | linear | attention | packed entirely | under any mask |",
        "|---|---|---|---|---|---|",
    ]
    for name, found in exports_table.expected().items():
        family, _, exporter = name.rpartition("_")
        if exporter in ("torchscript", "dynamo"):
            packed, padded = found["packed"], found["padded"]
            entirely = "yes" if packed["complete"] else "no"
            cells = [family, exporter, packed["linear"], packed["attention"], entirely, padded["attention"]]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _folded(rewritings: Rewritings) -> str:
    lines = [
        "| family | products | gated | turning | norming | norms beside | turns beside |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in folded.NAMES:
        found = folded.layers_of(rewritings.of_linear(name).model)
        cells = [name, *(str(count) for count in astuple(found))]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _fixed(cases: Iterable[Case], rewritten: Rewritten) -> str:
    """Files that take one batch, one length or both; results are those of every sequence padded to the file's size."""
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
        found = report.plugins.get("PadfreeAttention", 0)
        missed = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
        cells = [getattr(case, column), case.exporter, case.attention, _share(report)]
        cells += [f"{found} of {found + len(missed)}", " ".join(sorted(set(report.outputs.values()))), _reason(report)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _optimized(cases: Iterable[Case], rewritten: Rewritten) -> str:
    lines = ["| family | head | level | fused operators | linear | attention | masks | stays padded because |"]
    lines.append("|---|---|---|---|---|---|---|---|")
    for case in cases:
        model = load_model(case.path)
        fused = {node.op_type for node in model.graph.node if node.domain == "com.microsoft"}
        fused |= {"SimplifiedLayerNormalization"} & {node.op_type for node in model.graph.node}
        report = rewritten(case).report
        found = report.plugins.get("PadfreeAttention", 0)
        missed = sum(len(item.missed) for item in report.passes if item.name == "attention")
        cells = [case.family, case.head, case.level, ", ".join(sorted(fused)), _share(report)]
        cells += [
            f"{found} of {found + missed}",
            "right-padded" if report.right_padded_only else "any",
            _reason(report),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _share(report: CoverageReport) -> str:
    share = report.packed_gemm_share
    return "-" if share is None else f"{math.floor(100 * share)} %"


def _reason(report: CoverageReport) -> str:
    """Why attention stays padded, without the names of nodes."""
    missed = [miss.reason for item in report.passes if item.name == "attention" for miss in item.missed]
    return missed[0] if missed else ""


def _forms(cases: list[Case], rewritten: Rewritten) -> str:
    """Every choice; the files hold each pair of two choices at least once."""
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
