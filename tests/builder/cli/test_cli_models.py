# SPDX-License-Identifier: Apache-2.0
"""The `padfree` command on an exported model: optimize, run, inspect, demo, and models that are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from padfree.builder.cli import main
from padfree.builder.demo.demo import DEMO_DATA, largest_error, pick_evenly, require_agreement
from padfree.builder.errors import BuildError
from padfree.onnx_tools import save_model
from padfree.onnx_tools.synthetic import bert_model

from tests.support.mask_models import unproved_mask

Capture = pytest.CaptureFixture[str]
EXPORTED = str(DEMO_DATA / "bert_tiny.onnx")


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("optimized")
    path = folder / "packed.onnx"
    assert main(["optimize", EXPORTED, "-o", str(path), "--strict", "--report", str(folder / "report.json")]) == 0
    return path


def test_optimize_reports_coverage(packed: Path) -> None:
    report = json.loads((packed.parent / "report.json").read_text())
    assert report["complete"]
    assert report["plugins"]["PadfreeAttention"] >= 1


def test_a_mask_that_is_not_proved_is_named(tmp_path: Path, capsys: Capture) -> None:
    model, packed = tmp_path / "model.onnx", tmp_path / "packed.onnx"
    save_model(unproved_mask(), model)
    assert main(["optimize", str(model), "-o", str(packed)]) == 1
    assert "--mask attention_mask; or export" in " ".join(capsys.readouterr().err.split())
    assert main(["inspect", str(model), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["kind"] == "refused"
    named = ["--mask", "attention_mask"]
    assert main(["optimize", str(model), "-o", str(packed), *named]) == 0
    assert main(["inspect", str(model), "--json", *named]) == 0
    capsys.readouterr()
    assert main(["inspect", str(packed), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mask"]["input"] == "attention_mask"


def test_both_interfaces_give_the_originals_answers_on_texts(packed: Path, tmp_path: Path) -> None:
    import onnxruntime as ort
    from tokenizers import Tokenizer

    texts = pick_evenly((DEMO_DATA / "texts.txt").read_text().splitlines(), 5)
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(texts))
    encodings = Tokenizer.from_file(str(DEMO_DATA / "tokenizer.json")).encode_batch(texts)
    width = max(len(encoding.ids) for encoding in encodings)
    grid = np.zeros((3, len(texts), width), dtype=np.int64)
    for row, encoding in enumerate(encodings):
        grid[0, row, : len(encoding.ids)] = encoding.ids
        grid[1, row, : len(encoding.ids)] = 1
        grid[2, row, : len(encoding.ids)] = encoding.type_ids
    session = ort.InferenceSession(EXPORTED, providers=["CPUExecutionProvider"])
    hidden, pooled = session.run(
        ["last_hidden_state", "pooler_output"],
        {"input_ids": grid[0], "attention_mask": grid[1], "token_type_ids": grid[2]},
    )
    padded = tmp_path / "padded.onnx"
    assert main(["optimize", EXPORTED, "-o", str(padded), "--interface", "padded"]) == 0
    for model in (packed, padded):
        out = tmp_path / "out.npz"
        tokenizer = str(DEMO_DATA / "tokenizer.json")
        assert main(["run", str(model), "--input", str(source), "--tokenizer", tokenizer, "-o", str(out)]) == 0
        with np.load(out) as file:
            # fp32 sums in another order, outputs of magnitude 1
            np.testing.assert_allclose(file["last_hidden_state"], hidden[grid[1] == 1], atol=2e-4)
            np.testing.assert_allclose(file["pooler_output"], pooled, atol=2e-4)


def test_inspect_of_a_rewritten_model(packed: Path, capsys: Capture) -> None:
    assert main(["inspect", str(packed), "--verbose"]) == 0
    output = capsys.readouterr().out
    for part in ("PadfreeAttention", "input_ids", "seq_lens", "last_hidden_state", "100.0 %"):
        assert part in output


def test_what_stays_float32_is_named(tmp_path: Path, capsys: Capture) -> None:
    model = bert_model(2, 32, 4, 64, vocab_size=60, max_positions=48)
    for name, factor in (("intermediate", 3e4), ("output", 1 / 3e4)):
        weight = next(item for item in model.graph.initializer if item.name == f"encoder.layer.1.{name}.dense.MatMul")
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * np.float32(factor), weight.name))
    original, packed = tmp_path / "model.onnx", tmp_path / "packed.onnx"
    save_model(model, original)
    assert main(["optimize", str(original), "-o", str(packed), "--precision", "fp16", "-v"]) == 0
    optimized = capsys.readouterr().out
    assert main(["inspect", str(packed), "-v"]) == 0
    for shown in (optimized, capsys.readouterr().out):
        assert "float32, with the nodes that make and read it" in shown
        assert "fp16 holds at most 65504" in shown


def test_a_sequence_beyond_the_positions(packed: Path, tmp_path: Path, capsys: Capture) -> None:
    source = tmp_path / "batch.jsonl"
    source.write_text(json.dumps([1] * 513))
    assert main(["run", str(packed), "--input", str(source), "-o", str(tmp_path / "out.npz")]) == 1
    assert "sequence 0 has 513 tokens, the model has 512 positions" in capsys.readouterr().err


def test_a_truncated_model(packed: Path, tmp_path: Path, capsys: Capture) -> None:
    model = tmp_path / "model.onnx"
    model.write_bytes(Path(EXPORTED).read_bytes()[:-1000])
    assert main(["optimize", str(model), "-o", str(tmp_path / "out.onnx")]) == 1
    assert str(model) in capsys.readouterr().err
    cut = tmp_path / "packed.onnx"
    cut.write_bytes(packed.read_bytes()[:-1000])
    source = tmp_path / "batch.jsonl"
    source.write_text("[1]")
    assert main(["run", str(cut), "--input", str(source), "-o", str(tmp_path / "out.npz")]) == 1
    assert str(cut) in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


def test_a_model_without_attention(tmp_path: Path, capsys: Capture) -> None:
    grid = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, grid) for name in ("input_ids", "attention_mask")]
    output = helper.make_tensor_value_info("y", TensorProto.INT64, grid)
    graph = helper.make_graph([helper.make_node("Mul", ["input_ids", "attention_mask"], ["y"])], "g", inputs, [output])
    model = tmp_path / "model.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(model))
    assert main(["optimize", str(model), "-o", str(tmp_path / "out.onnx")]) == 1
    assert "attention" in capsys.readouterr().err
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.slow  # and the README's first command
def test_demo(capsys: Capture) -> None:
    assert main(["demo", "--quick"]) == 0
    output = capsys.readouterr().out
    for part in ("bert-tiny", "bert-base", "saved", "largest error", "onnxruntime fp32"):
        assert part in output


def test_the_demo_does_not_pass_over_differences() -> None:
    rows = [np.array([[1.0, -4.0]]), np.array([[2.0, 0.0]])]
    changed = [rows[0], np.array([[2.0, 1.0]])]
    assert largest_error({"y": rows}, {"y": rows}) == 0
    assert largest_error({"y": rows}, {"y": changed}) == 0.25
    assert np.isinf(largest_error({"y": rows}, {"y": [rows[0], np.array([[np.nan, 0.0]])]}))
    with pytest.raises(BuildError, match=r"differ by 2\.50e-01"):
        require_agreement("model", 0.25, 1e-3)
    with pytest.raises(BuildError, match="differ by nan"):
        require_agreement("model", float("nan"), 1e-3)


def test_texts_are_spread_over_all_lengths() -> None:
    texts = ["a" * length for length in (5, 1, 9, 3, 7)]
    assert [len(text) for text in pick_evenly(texts, 3)] == [1, 5, 9]


@pytest.mark.parametrize("name", ["out.parquet", "out"])
def test_run_refuses_other_results_before_it_computes(
    name: str, packed: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[object]()
    monkeypatch.setattr("padfree.runtime.Session", lambda *given, **_: opened.append(given))
    source = tmp_path / "in.jsonl"
    source.write_text("[1, 2]\n")
    assert main(["run", str(packed), "--input", str(source), "-o", str(tmp_path / name)]) == 1
    message = " ".join(capsys.readouterr().err.split())
    assert (
        "run writes .npz files, and of texts .jsonl, .ndjson; name it out.npz, or take padfree embed, which writes "
        "parquet"
    ) in message
    assert opened == []
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
