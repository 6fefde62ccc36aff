# SPDX-License-Identifier: Apache-2.0
"""Builds check their engines: correct ones are written with their errors, wrong ones are not written at all.

Engines are what TensorRT's parser would get, in onnxruntime (cpu_engines.py), with tensors rounded as on a GPU.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from padfree.builder import BuildError, build_engine
from padfree.builder.cli import main, make_parser
from padfree.builder.demo.demo import DEMO_DATA
from padfree.builder.engine.phases import COMPARING, REFERENCE
from padfree.builder.engine_check import checking
from padfree.onnx_tools import rewrite, save_model
from padfree.onnx_tools.operators import padfree_nodes
from padfree.runtime import OutputSizeError, SessionError

from tests.support.cpu_engines import use_cpu_engines
from tests.support.folders import write_folder
from tests.support.sequence_models import with_rows, with_shared

EXPORTED = DEMO_DATA / "bert_tiny.onnx"
LIMITS: dict[str, Any] = {"max_batch": 8, "max_seq_len": 64, "timing_cache": None}
WORST = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 8e-2}
"""The bounds that these correct engines keep: a twentieth of what is allowed."""
PADDED_FP16 = "--interface padded --precision fp16"
Capture = pytest.CaptureFixture[str]


def double_scale(model: onnx.ModelProto) -> None:
    """A broken attention kernel: the last layer's scores are twice as large."""
    node = [node for node in padfree_nodes(model.graph) if node.op_type == "PadfreeAttention"][-1]
    next(item for item in node.attribute if item.name == "scale").f *= 2


def own_token_alone(model: onnx.ModelProto) -> None:
    """An attention kernel with wrong offsets: every query sees its own key and no other."""
    node = next(node for node in padfree_nodes(model.graph) if node.op_type == "PadfreeAttention")
    next(item for item in node.attribute if item.name == "window_left").i = 0
    next(item for item in node.attribute if item.name == "window_right").i = 0


def no_residual(model: onnx.ModelProto) -> None:
    """A broken norm kernel: it adds its input twice instead of the residual."""
    node = [node for node in padfree_nodes(model.graph) if node.op_type == "PadfreeLayerNorm"][-1]
    node.input[1] = node.input[0]


@pytest.mark.parametrize(
    ("interface", "precision"),
    [
        ("packed", "fp32"),
        ("padded", "fp16"),
        ("varseqlen", "bf16"),
        pytest.param("packed", "fp16", marks=pytest.mark.slow),
        pytest.param("packed", "bf16", marks=pytest.mark.slow),
    ],
)
def test_right_engines_are_written_with_their_errors(
    interface: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = (interface, precision) == ("packed", "bf16")
    engines, plan = use_cpu_engines(monkeypatch, apart=apart), tmp_path / "model.plan"
    metadata = build_engine(EXPORTED, plan, interface=interface, precision=precision, **LIMITS)
    check = metadata["check"]
    assert json.loads(Path(f"{plan}.json").read_text())["check"] == check
    assert {REFERENCE, COMPARING} <= set(metadata["engine"]["build_seconds"])
    assert set(check["outputs"]) == {"last_hidden_state", "pooler_output"}
    for actual in check["outputs"].values():
        assert 0 <= actual["relative"] < WORST[precision]
        assert actual["cosine"] > 1 - WORST[precision] ** 2
    last = {"padded": "holes"}.get(interface, "filler and empty")
    assert [batch["name"] for batch in check["batches"]] == ["one token", "mixed", "longest", last]
    assert check["batches"][2]["seq_lens"] == [64]
    (engine,) = engines
    assert (len(engine.runs), engine.closed) == (4, True)


def test_the_answers_are_the_originals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of how the reference is made, the exported file itself runs here, sequence by sequence."""
    use_cpu_engines(monkeypatch)
    metadata = build_engine(EXPORTED, tmp_path / "model.plan", precision="bf16", **LIMITS)
    original = ort.InferenceSession(str(EXPORTED), providers=["CPUExecutionProvider"])
    for batch in metadata["check"]["batches"]:
        ids, types = (
            [int(value) for value in batch["tokens"][name].split()] for name in ("input_ids", "token_type_ids")
        )
        hidden, start = [], 0
        for length in batch["seq_lens"]:
            if length:
                part = slice(start, start := start + length)
                grid = np.asarray([ids[part], [1] * length, types[part]])[:, None]
                feeds = dict(zip(("input_ids", "attention_mask", "token_type_ids"), grid, strict=True))
                hidden.append(original.run(["last_hidden_state"], feeds)[0][0])
        assert start + batch["filler_tokens"] == len(ids)
        flat = np.concatenate(hidden).reshape(-1)
        answers = batch["answers"]["last_hidden_state"]
        right = np.asarray([float(number) for number in answers["right"].split()])
        positions = np.linspace(0, flat.size - 1, right.size).astype(np.int64)
        np.testing.assert_allclose(right, flat[positions], atol=1e-4)
        assert answers["shape"] == [sum(batch["seq_lens"]), hidden[0].shape[1]]


@pytest.mark.parametrize(
    ("precision", "change"),
    [
        ("fp32", double_scale),
        ("fp16", no_residual),
        pytest.param("fp32", no_residual, marks=pytest.mark.slow),
        pytest.param("fp16", double_scale, marks=pytest.mark.slow),
        pytest.param("bf16", no_residual, marks=pytest.mark.slow),
    ],
)
def test_a_broken_kernels_plan_is_not_written(
    precision: str, change: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cpu_engines(monkeypatch, change)
    with pytest.raises(BuildError, match=r"gives other answers than .* was not written") as caught:
        build_engine(EXPORTED, tmp_path / "model.plan", precision=precision, **LIMITS)
    assert list(tmp_path.iterdir()) == []
    command = str(caught.value).split("differs first: ")[1].split(";")[0]
    assert shlex.split(command)[:3] == ["padfree", "compare", str(EXPORTED)]
    arguments = make_parser().parse_args(shlex.split(command)[1:])
    assert (arguments.runners, arguments.bisect, arguments.precision) == (("trt",), True, precision)
    use_cpu_engines(monkeypatch, change)
    metadata = build_engine(EXPORTED, tmp_path / "model.plan", precision=precision, verify=False, **LIMITS)
    assert "check" not in metadata


@pytest.mark.slow
def test_a_rewritten_files_command_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = tmp_path / "my packed.onnx"
    save_model(rewrite(EXPORTED, precision="fp16").model, packed)
    use_cpu_engines(monkeypatch, double_scale)
    with pytest.raises(BuildError) as caught:
        build_engine(packed, tmp_path / "model.plan", **LIMITS)
    assert f"padfree compare model.onnx '{packed}' --runners trt --bisect (where model.onnx is" in str(caught.value)
    use_cpu_engines(monkeypatch)
    check = build_engine(packed, tmp_path / "model.plan", **LIMITS)["check"]
    assert check["outputs"]["last_hidden_state"]["relative"] < WORST["fp16"]


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ["padfree compare M --interface packed --precision fp16 --runners trt --bisect"]),
        (
            {"interface": "padded", "masks": "contiguous", "padding_id": 1},
            [
                f"padfree optimize M -o packed.onnx {PADDED_FP16} --masks contiguous --padding-id 1",
                "padfree compare M packed.onnx --runners trt --bisect",
            ],
        ),
    ],
)
def test_commands_are_those_that_make_the_same_graph(
    options: dict[str, Any], wanted: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_cpu_engines(monkeypatch, double_scale)
    with pytest.raises(BuildError) as caught:
        build_engine(EXPORTED, tmp_path / "model.plan", precision="fp16", **options, **LIMITS)
    shown = str(caught.value).split("differs first: ")[1].split("; --no-verify")[0]
    assert shown.replace(str(EXPORTED), "M").split(" and then ") == wanted
    for command in shown.split(" and then "):
        make_parser().parse_args(shlex.split(command)[1:])


@pytest.mark.slow
def test_a_message_is_checked_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models that are given in memory are prepared in this process."""
    model = onnx.load(str(EXPORTED))
    use_cpu_engines(monkeypatch)
    assert build_engine(model, tmp_path / "model.plan", precision="fp16", **LIMITS)["check"]["outputs"]
    use_cpu_engines(monkeypatch, double_scale)
    with pytest.raises(BuildError, match="gives other answers"):
        build_engine(model, tmp_path / "other.plan", precision="fp16", **LIMITS)


@pytest.mark.slow
def test_an_engine_in_fp8_has_the_answers_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = tmp_path / "bert.onnx", tmp_path / "ids.jsonl"
    from padfree.onnx_tools.synthetic import bert_model

    onnx.save_model(bert_model(2, 64, 2, 128, 100, 64), str(model))
    rng = np.random.default_rng(0)
    ids.write_text("".join(f"{json.dumps(rng.integers(0, 100, length).tolist())}\n" for length in (60, 7, 33)))
    command = ["build", str(model), "-o", str(tmp_path / "model.plan"), "--precision", "fp8", "--calibrate", str(ids)]
    use_cpu_engines(monkeypatch)
    monkeypatch.setattr("padfree.builder.engine.build.check_machine", lambda *_, **__: None)
    assert main(command) == 0
    check = json.loads((tmp_path / "model.plan.json").read_text())["check"]
    assert check["reference"].startswith("the file in e4m3")
    assert check["outputs"]["last_hidden_state"]["relative"] < 1e-3  # the same roundings, in the same library
    assert main([*command, "--no-verify"]) == 0
    assert "check" not in json.loads((tmp_path / "model.plan.json").read_text())


def test_the_commands_table_and_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use_cpu_engines(monkeypatch)
    command = ["build", str(EXPORTED), "-o", str(tmp_path / "model.plan"), "--max-seq-len", "32", "--no-timing-cache"]
    assert main(command) == 0
    assert "relative" in capsys.readouterr().out
    (tmp_path / "model.plan").unlink()
    use_cpu_engines(monkeypatch, double_scale)
    assert main(command) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert f"padfree compare {EXPORTED} --interface packed --precision fp16 --runners trt --bisect" in said
    assert not (tmp_path / "model.plan").exists()
    assert main([*command, "--pooling", "mean", "--mask", "attention_mask"]) == 1
    said = " ".join(capsys.readouterr().err.split())
    shown = "--pooling mean --mask attention_mask --interface packed --precision fp16 --runners trt --bisect"
    assert f"padfree compare {EXPORTED} {shown}" in said, "what was built is made of the file and these options"


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_rows_of_sequences_and_whole_numbers(interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model has inputs and outputs with a row for every sequence, and one output is of integers."""
    use_cpu_engines(monkeypatch)
    limits = {**LIMITS, "max_seq_len": 32}
    check = build_engine(with_rows(), tmp_path / "model.plan", interface=interface, precision="fp16", **limits)["check"]
    assert check["outputs"]["row_id_out"]["equal"] == 1.0
    assert check["outputs"]["row_id_out"]["relative"] is None
    assert set(check["batches"][0]["of_sequences"]) == {"language", "source", "features", "row_id"}


@pytest.mark.parametrize("interface", ["packed", "padded"])
def test_values_of_a_whole_batch(interface: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sequences of a batch have the same values."""
    use_cpu_engines(monkeypatch)
    limits = {**LIMITS, "max_seq_len": 32}
    build_engine(with_shared(), tmp_path / "model.plan", interface=interface, precision="fp16", **limits)
    check = json.loads((tmp_path / "model.plan.json").read_text())["check"]
    for batch in check["batches"]:
        rows = {name: values.split() for name, values in batch["of_sequences"].items()}
        count = len(rows["task"])
        assert rows["features"] == rows["features"][:3] * count
        assert rows["task"] == rows["task"][:1] * count


@pytest.mark.slow
def test_a_folders_command_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    write_folder(Path("small"), modules=[("Pooling", {"pooling_mode": "mean"})])
    command = ["build", "small", "-o", "small.plan", "--precision", "fp16", "--no-timing-cache"]
    use_cpu_engines(monkeypatch)
    assert main(command) == 0
    Path("small.plan").unlink()
    use_cpu_engines(monkeypatch, own_token_alone)
    assert main(command) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "padfree compare small --interface packed --precision fp16 --runners trt --bisect; --no-verify skips" in said
    assert not Path("small.plan").exists()


def test_an_engine_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cpu_engines(monkeypatch)

    class Failing:
        def run(self, *_: Any, **__: Any) -> Any:
            raise SessionError("CUDA failed with cudaErrorIllegalAddress")

        def close(self) -> None:
            raise SessionError("CUDA failed again")

    monkeypatch.setattr(checking, "open_engine", lambda *_: Failing())
    with pytest.raises(
        BuildError, match=r"does not run .*'one token' \(lengths \[1\]\): .*IllegalAddress; .* not written"
    ):
        build_engine(EXPORTED, tmp_path / "model.plan", **LIMITS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_output_whose_size_follows_from_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_cpu_engines(monkeypatch)

    class Sizeless:
        def run(self, *_: Any, **__: Any) -> Any:
            raise OutputSizeError("output 'logits' has the shape [1, ?, 3]")

        def close(self) -> None:
            pass

    monkeypatch.setattr(checking, "open_engine", lambda *_: Sizeless())
    with pytest.raises(BuildError, match=r"^output 'logits' .* \[1, \?, 3\]; \S*model\.plan was not written$"):
        build_engine(EXPORTED, tmp_path / "model.plan", **LIMITS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "limits", [{"max_batch": 1, "max_seq_len": 1}, {"max_batch": 1}, {"max_batch": 3, "max_tokens": 9}]
)
def test_small_profiles(limits: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engines, plan = use_cpu_engines(monkeypatch), tmp_path / "model.plan"
    asked = {"max_seq_len": 9, **limits}
    metadata = build_engine(EXPORTED, plan, precision="fp32", timing_cache=None, **asked)
    profile = metadata["engine"]["profile"]
    for feeds in engines[0].runs:
        assert 1 <= len(feeds["input_ids"]) <= profile["max_tokens"]
        assert 1 <= len(feeds["seq_lens"]) <= profile["max_batch"]
        assert feeds["seq_lens"].max() <= profile["max_seq_len"]
        assert feeds["seq_lens"].sum() <= len(feeds["input_ids"])
