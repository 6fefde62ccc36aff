# SPDX-License-Identifier: Apache-2.0
"""What becomes of every exported file: python -m tests.support.exports_table writes exports/expected.json.

Each file is right, with a note of what is packed, or refused. Read changes of the table: every reason has to be true.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from padfree.onnx_tools import RewriteError, RewriteResult, VerificationError
from padfree.onnx_tools.files.model import Model
from padfree.onnx_tools.importing.quantized.removal import holds_quantization, without_quantization
from padfree.onnx_tools.report import percent

from . import exports

TABLE = exports.FOLDER / "expected.json"
INTERFACES = ("packed", "padded")
EQUAL_LENGTHS = (7, 7, 7)
INVERTED = ("mask_inverted_ts17",)  # its mask is 0 where tokens are kept
ENDS = {"bart_cls_dy18": 2, "o_bart_cls_model": 2}  # ids that end every text, by which the file finds its last token
# onnxruntime's own text differs between its versions.
OF_ONNXRUNTIME = re.compile(r"\[ONNXRuntimeError\](?s:.*?)(?=\)?; (?:check|packed batches|whether|--no-verify))")


def inputs_of(name: str) -> list[exports.Input]:
    """A file's inputs, with the ids that end its texts."""
    inputs = exports.inputs_of(name)
    if name in INVERTED:
        inputs = [replace(item, kind="inverted") if item.kind == "mask" else item for item in inputs]
    if name in ENDS:
        inputs = [replace(item, last=ENDS[name], excl=(1,)) if item.kind == "ids" else item for item in inputs]
    return inputs


def right(name: str, interface: str) -> RewriteResult:
    """The rewritten file, compared with the original on each sequence alone. Raises RewriteError."""
    inputs = inputs_of(name)
    masked = any(item.kind in ("mask", "inverted", "seg") for item in inputs) or any(item.excl for item in inputs)
    # Without a mask every slot of the padded interface is a token.
    lengths = exports.LENGTHS if masked or interface == "packed" else EQUAL_LENGTHS
    model = exports.load(name)
    if holds_quantization(model):  # the quantization is removed, so also from what the result is compared with
        model = without_quantization(Model(model)).model.whole()
    return exports.assert_right(model, inputs, interface, lengths=lengths)


def outcome(name: str, interface: str, right: Callable[[str, str], RewriteResult] = right) -> dict[str, Any]:
    """The result of rewriting, or the reason why the file is refused; `right` may be a cache of rewritten files."""
    try:
        result = right(name, interface)
    except RewriteError as error:
        if isinstance(error, VerificationError) and "please report this" in str(error):
            raise AssertionError(f"{name}, {interface}: {error}") from error
        return {"refused": OF_ONNXRUNTIME.sub("[ONNXRuntimeError] ...", str(error))}
    report = result.report
    share = report.packed_gemm_share
    missed = sum(len(item.missed) for item in report.passes if item.name == "attention")
    actual = report.plugins.get("PadfreeAttention", 0)
    return {
        "complete": report.complete,
        "linear": None if share is None else percent(share),
        "attention": f"{actual} of {actual + missed}",
        "outputs": dict(report.outputs),
        "longest": exports.metadata_of(result)["max_positions"],
        **({} if report.complete else {"padded": _kinds(report.reasons)}),
        **({"right-padded": list(report.right_padded_because)} if report.right_padded_only else {}),
    }


def _kinds(reasons: tuple[str, ...]) -> list[str]:
    """The first of each group of reasons that differ only in names of nodes."""
    results: dict[str, str] = {}
    for reason in reasons:
        results.setdefault(re.sub(r"'[^']*'", "''", reason), reason)
    return list(results.values())


def expected_table() -> dict[str, dict[str, dict[str, Any]]]:
    """The committed table."""
    actual: dict[str, dict[str, dict[str, Any]]] = json.loads(TABLE.read_text())
    return actual


if __name__ == "__main__":
    table = {name: {interface: outcome(name, interface) for interface in INTERFACES} for name in exports.names()}
    TABLE.write_text(json.dumps(table, indent=1) + "\n")
