# SPDX-License-Identifier: Apache-2.0
"""Planted errors: `padfree compare` gives exit code 1 and says what is wrong; bisecting names the node."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.cli import main

from . import planted_errors

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return planted_errors.write_original(tmp_path_factory.mktemp("planted") / "original.onnx")


def compare(original: Path, model: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the report of the only runner."""
    report = model.with_suffix(".report.json")
    code = main(["compare", str(original), str(model), "--max-seq-len", "40", "--json", str(report), *options])
    content = json.loads(report.read_text())
    assert content["passed"] is (code == 0)
    return code, content["runners"][0]


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_nothing_planted(original: Path, tmp_path: Path, interface: str) -> None:
    model = planted_errors.write_rewritten(original, tmp_path / "model.onnx", interface=interface)
    code, runner = compare(original, model, "--bisect")
    assert code == 0
    assert runner["causes"] == []
    assert runner["bisection"]["first"] is None
    assert len(runner["bisection"]["trace"]) > 8 * planted_errors.LAYERS


@pytest.mark.parametrize(
    ("interface", "change", "cause"),
    [
        ("packed", planted_errors.weight_of_layer_3, "weight 'encoder.layer.3"),
        ("padded", planted_errors.weight_of_layer_3, "weight 'encoder.layer.3"),
        ("packed", planted_errors.swap_outputs, "'last_hidden_state' holds what the original gives for 'middle'"),
        ("packed", planted_errors.shift_positions, "positions are shifted by 1"),
        ("packed", planted_errors.shift_positions, "attribute position_offset of PadfreeEmbedding"),
        ("packed", planted_errors.shift_rows, "'last_hidden_state' has every token's row at the previous token"),
        ("packed", planted_errors.drop_token_types, "input 'token_type_ids' is not read"),
        ("packed", planted_errors.drop_mask_packed, "the mask is dropped, sequences see each other"),
        ("padded", planted_errors.drop_mask_padded, "the mask is dropped, padding is read"),
    ],
)
def test_a_planted_error_is_named(
    original: Path, tmp_path: Path, interface: str, change: planted_errors.Change, cause: str, capsys: Capture
) -> None:
    model = planted_errors.write_rewritten(original, tmp_path / "model.onnx", change, interface=interface)
    code, runner = compare(original, model)
    assert code == 1
    assert any(cause in item for item in runner["causes"]), runner["causes"]
    assert cause in runner["verdict"]
    (verdict,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAILED")]
    assert verdict == f"FAILED: onnxrt-packed: model.onnx differs from the original: {runner['causes'][0]}"


def test_outputs_of_different_shapes_that_are_swapped_are_refused(
    original: Path, tmp_path: Path, capsys: Capture
) -> None:
    model = planted_errors.write_rewritten(
        original, tmp_path / "model.onnx", partial(planted_errors.swap_outputs, other="pooler_output")
    )
    assert main(["compare", str(original), str(model), "--max-seq-len", "40"]) == 1
    assert "'last_hidden_state' has shape" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "precision", "node", "kind"),
    [
        (planted_errors.wrong_scale_in_last_layer, "fp32", "PadfreeAttention_3", "wrong numbers"),
        pytest.param(
            planted_errors.wrong_scale_in_last_layer,
            "fp16",
            "PadfreeAttention_3",
            "wrong numbers",
            marks=pytest.mark.slow,
        ),
        (planted_errors.drop_mask_packed, "fp32", "PadfreeAttention_2", "wrong mask"),
        (planted_errors.weight_of_layer_3, "fp32", "/MatMul", "wrong numbers"),
    ],
)
def test_bisecting_finds_the_node(
    original: Path, tmp_path: Path, change: planted_errors.Change, precision: str, node: str, kind: str
) -> None:
    model = planted_errors.write_rewritten(original, tmp_path / "model.onnx", change, precision=precision)
    code, runner = compare(original, model, "--bisect")
    actual = runner["bisection"]
    assert code == 1
    assert actual["first"]["node"].startswith(node)
    assert actual["kind"] == kind
    assert "encoder.layer.3" not in node or "LayerNormalization" in actual["since"][0]


@pytest.mark.slow
def test_bisecting_finds_an_overflow(tmp_path: Path) -> None:
    original = planted_errors.write_original(tmp_path / "large.onnx", planted_errors.large_numbers_in_layer_3)
    model = planted_errors.write_rewritten(original, tmp_path / "model.onnx", precision="fp16")
    code, runner = compare(original, model, "--bisect")
    assert code == 1
    assert runner["bisection"]["kind"] == "overflow"
    assert runner["bisection"]["first"]["operator"] == "MatMul"
    assert runner["bisection"]["first"]["wanted"]["high"] > 65504


@pytest.mark.slow
def test_rounding_that_adds_up_is_told_from_errors(original: Path, tmp_path: Path) -> None:
    model = planted_errors.write_rewritten(original, tmp_path / "model.onnx", precision="bf16")
    code, runner = compare(original, model, "--bisect", "--relative-tolerance", "0.01")
    assert code == 1
    assert runner["bisection"]["kind"] == "lost precision"
    (cause,) = runner["causes"]
    assert cause.startswith("bf16 loses too many digits in this model: in onnxruntime the same file is 0.0")
    assert "choose precision fp16 or fp32" in cause


@pytest.mark.slow
def test_files_of_one_name_and_tolerances_of_the_users_own(original: Path, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "other").mkdir()
    good = planted_errors.write_rewritten(original, tmp_path / "model.onnx")
    bad = planted_errors.write_rewritten(
        original, tmp_path / "other" / "model.onnx", planted_errors.wrong_scale_in_last_layer
    )
    command = ["compare", str(original), str(good), str(bad), "--max-seq-len", "40"]
    assert main(command) == 1
    assert f"onnxrt-packed: {bad} differs from the original" in capsys.readouterr().out
    assert main([*command, "--absolute-tolerance", "1", "--relative-tolerance", "1"]) == 0
    assert main([*command, "--absolute-tolerance", "0"]) == 1
    assert "absolute tolerance 0.0, allowed: a number above 0" in capsys.readouterr().err
