# SPDX-License-Identifier: Apache-2.0
"""Coverage reports on the command line: inspect and --report, for people and for scripts."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from padfree.builder import BuildError, lengths
from padfree.builder.cli import main
from padfree.builder.cli.coverage import si, verdict
from padfree.builder.coverage import near_misses, report
from padfree.builder.demo.demo import DEMO_DATA

from tests.support.pages import page

Capture = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[2]
EXPORTED = DEMO_DATA / "bert_tiny.onnx"
TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "number": (int, float),
    "string": (str,),
    "list": (list,),
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demonstration's model, rewritten with a report beside it."""
    path = tmp_path_factory.mktemp("packed") / "packed.onnx"
    command = ["optimize", str(EXPORTED), "-o", str(path), "--report", str(path.with_suffix(".json")), "--no-verify"]
    assert main([*command, "--max-length", "128", "--mean-length", "32"]) == 0
    return path


def incomplete(metadata: dict[str, Any]) -> dict[str, Any]:
    """Metadata with one island: attention of two heads on padded tokens."""
    gemm = {"op": "MatMul", "part": "attention", "weights": False, "count": 2}
    sizes = {"batch": "2*B", "rows": "S", "inner": "8", "columns": "S"}
    gemms = [{**gemm, **sizes}]
    recorded = {"original": gemms, "rewritten": gemms, "uncounted": []}
    return {**metadata, "coverage": {**metadata["coverage"], "products": recorded}}


def documented_keys() -> dict[str, set[str]]:
    """Key -> types, from the tables of docs/reference/report.md."""
    results: dict[str, set[str]] = {}
    for line in page("report").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0].startswith("`"):
            for key in re.findall(r"`([^`]+)`", cells[0]):
                results[key] = {cells[1]} | ({"null"} if "null" in cells[2] else set())
    return results


def leaves(value: Any, objects: set[str], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a report under its documented path; `objects` are the lists of objects."""
    free = ("outputs", "plugins", "excluded_ids", "costs.parts")
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, objects, f"{path}.{'*' if path in free else key}".lstrip("."))
    elif f"{path}[]" in objects:
        yield f"{path}[]", {}
        for item in value:
            inner = "products.*" if path.startswith("products.") else path
            yield from leaves(item, objects, f"{inner}[]")
    else:
        yield path, value


def test_the_reports_schema_is_the_documented_one(packed: Path) -> None:
    table = documented_keys()
    objects = {path for path, kinds in table.items() if kinds == {"object"}}
    seen = set()
    for path, value in leaves(json.loads(packed.with_suffix(".json").read_text()), objects):
        seen.add(path)
        assert path in table, f"{path} is not in docs/reference/report.md"
        wanted = table[path]
        if isinstance(value, dict):
            assert wanted == {"object"}, path
        elif value is None:
            assert "null" in wanted, path
        else:
            (kind,) = wanted - {"null"}
            assert isinstance(value, TYPES[kind]), f"{path} is {value!r}, documented as {kind}"
            assert not (kind != "bool" and isinstance(value, bool)), path
    # Keys that a model without islands, misses and excluded ids does not show.
    rest = {"islands[].node", "islands[].reason", "passes[].missed[].node", "passes[].missed[].reason"}
    assert set(table) - seen == {*rest, "excluded_ids.*"}


def test_a_report_says_what_was_asked_for(packed: Path) -> None:
    costs = json.loads(packed.with_suffix(".json").read_text())["costs"]
    assert costs["lengths"] == {"batch": 32, "mean": 32.0, "max": 128, "tokens": 1024.0, "slots": 4096}
    linear = costs["parts"]["linear"]
    assert linear["original_flops"] / linear["rewritten_flops"] == pytest.approx(4)


def test_inspect_of_the_packed_file_alone_equals_inspect_of_the_original(packed: Path, capsys: Capture) -> None:
    shown = []
    for path in (EXPORTED, packed):
        assert main(["inspect", str(path), "--json", "--mean-length", "100", "--gpu", "l4"]) == 0
        shown.append(json.loads(capsys.readouterr().out))
    original, rewritten = shown
    assert (original.pop("kind"), rewritten.pop("kind")) == ("original", "packed")
    assert (original.pop("file"), rewritten.pop("file")) == (str(EXPORTED), str(packed))
    assert original == rewritten
    assert rewritten["coverage"]["costs"]["roofline"]["gpu"] == "l4"


def test_inspect_of_an_original_shows_what_rewriting_gives(capsys: Capture) -> None:
    assert main(["inspect", str(EXPORTED), "--strict", "--max-length", "64", "--verbose"]) == 0
    output = capsys.readouterr().out
    for part in (
        "an exported model",
        "one row per token [T, ...]",
        "linear layers",
        "expected of the GEMMs alone",
        "x fewer FLOPs",
        "at most 64 (1229 tokens, 2048 slots with padding)",
        "complete: nothing computes padding",
    ):
        assert part in output


def test_strict_makes_incomplete_an_error(packed_model: Any, packed_metadata: dict[str, Any], capsys: Capture) -> None:
    path = packed_model()
    model = onnx.load(path)
    helper.set_model_props(model, {"padfree": json.dumps(incomplete(packed_metadata))})
    onnx.save(model, path)
    assert main(["inspect", str(path), "--max-length", "8", "-v"]) == 0
    output = capsys.readouterr().out
    assert "incomplete: 1 node stays padded; 0.0 % of all FLOPs is packed" in output
    assert main(["inspect", str(path), "--strict", "--json"]) == 1
    printed = capsys.readouterr()
    assert "incomplete, 1 node stays padded" in printed.err
    assert json.loads(printed.out)["coverage"]["costs"]["flop_ratio"] == 1.0


def test_a_refused_model(tmp_path: Path, capsys: Capture) -> None:
    grid = ["batch", "sequence"]
    inputs = [helper.make_tensor_value_info(name, onnx.TensorProto.INT64, grid) for name in ("ids", "attention_mask")]
    output = helper.make_tensor_value_info("y", onnx.TensorProto.INT64, grid)
    graph = helper.make_graph([helper.make_node("Mul", ["ids", "attention_mask"], ["y"])], "g", inputs, [output])
    path = tmp_path / "model.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    assert main(["inspect", str(path)]) == 1
    assert "no attention found" in capsys.readouterr().err
    assert main(["inspect", str(path), "--json"]) == 1
    refused = json.loads(capsys.readouterr().out)
    assert refused["kind"] == "refused"
    assert "no attention found" in refused["reason"]
    path.write_bytes(b"nothing")
    assert main(["inspect", str(path), "--json"]) == 1
    assert capsys.readouterr().out == ""  # damaged, not refused


def test_near_misses_that_differ_in_names_alone_are_one() -> None:
    def miss(node: str, text: str) -> dict[str, str]:
        return {"node": node, "reason": text}

    coverage = {
        "passes": [{"name": "attention", "missed": [miss("a", "mask of 'a' is odd"), miss("b", "mask of 'b' is odd")]}],
        "islands": [
            miss("a", "mask of 'a' is odd"),
            miss("c", "'c' (Div) works between nodes that stay padded"),
            miss("d", "'d' reads padding"),
        ],
    }
    actual = near_misses(coverage)
    assert [(item.where, item.node, item.count) for item in actual] == [("attention", "a", 2), ("", "d", 1)]


def test_files_without_gemms_have_no_costs(packed_metadata: dict[str, Any]) -> None:
    coverage = packed_metadata["coverage"]
    assert report(coverage, lengths.choose_lengths(None, None, None, None))["costs"] is None
    assert verdict(coverage) == "incomplete: 1 node stays padded; 50.0 % of the linear layers' work is packed"
    damaged = {**coverage, "products": {"original": [{"op": "MatMul"}], "rewritten": [], "uncounted": []}}
    with pytest.raises(BuildError, match="rewrite the model again"):
        report(damaged, lengths.choose_lengths(None, None, None, None))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((128, None, None, 129), "longest sequence 129, allowed: 1..128"),
        ((None, None, None, 0), "allowed: 1 or more; pass --max-length 512"),
        ((128, None, 200.0, None), "mean length 200, allowed: above 0 and at most the longest sequence, 128"),
        ((128, None, 0.0, None), "pass --mean-length 76.8"),
        ((128, 0, None, None), "batch of 0 sequences"),
    ],
)
def test_lengths_that_contradict_each_other(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(BuildError, match=re.escape(message)):
        lengths.choose_lengths(*arguments)


@pytest.mark.parametrize("command", [["optimize", "none.onnx", "-o", "packed.onnx"], ["inspect", "none.onnx"]])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-length", "0"], "longest sequence 0, allowed: 1 or more"),
        (["--max-length", "100", "--mean-length", "200"], "mean length 200, allowed: above 0 and at most the longest"),
        (["--mean-length", "0"], "mean length 0, allowed"),
        (["--mean-length", "nan"], "mean length nan, allowed"),
        (["--mean-length", "inf"], "mean length inf, allowed"),
        (["--batch", "0"], "batch of 0 sequences"),
        (["--mean-length", "4000"], "model file 'none.onnx' does not exist"),
    ],
)
def test_lengths_are_checked_before_a_model_is_read(
    command: list[str],
    options: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*command, *options]) == 1
    assert message in capsys.readouterr().err


def test_numbers_have_prefixes() -> None:
    assert [si(value) for value in (0.0, 999.0, 1500.0, 2.5e9, 3e13)] == ["0", "999", "1.5 k", "2.5 G", "30 T"]


def test_metadata_of_somebody_else_makes_no_rewritten_model(tmp_path: Path, capsys: Capture) -> None:
    model = onnx.load(EXPORTED)
    helper.set_model_props(model, {"padfree": "{}"})
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert main(["inspect", str(path), "--strict"]) == 0
    assert "an exported model" in capsys.readouterr().out


def test_outputs_that_are_the_same_for_every_batch_are_shown(tmp_path: Path, capsys: Capture) -> None:
    model = onnx.load(EXPORTED)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((2, 3), np.float32), "scales"))
    model.graph.output.append(helper.make_tensor_value_info("scales", onnx.TensorProto.FLOAT, [2, 3]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    assert main(["inspect", str(path), "-v"]) == 0
    assert "the same for every batch" in capsys.readouterr().out


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything in a JSON value, with only the first two elements of lists."""
    if path:
        yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for step, item in inside:
        yield from paths_in(item, (*path, step))


@pytest.mark.parametrize(
    ("value", "start"),
    [
        (None, 0),
        pytest.param(math.inf, 1, marks=pytest.mark.slow),
        pytest.param("\x1b[2J", 1, marks=pytest.mark.slow),
        pytest.param({"a": 1}, 0, marks=pytest.mark.slow),
    ],
)
def test_inspect_names_what_is_damaged(packed: Path, tmp_path: Path, capsys: Capture, value: Any, start: int) -> None:
    """Each entry of a rewritten file's metadata is replaced by two of the values, one entry at a time."""
    model = onnx.load(packed)
    (entry,) = (item for item in model.metadata_props if item.key == "padfree")
    whole, refused = json.loads(entry.value), 0
    for *steps, last in [*paths_in(whole)][start::2]:
        raw = json.loads(json.dumps(whole))
        location = raw
        for step in steps:
            location = location[step]
        location[last] = value
        entry.value = json.dumps(raw)
        (tmp_path / "packed.onnx").write_bytes(model.SerializeToString())
        refused += main(["inspect", str(tmp_path / "packed.onnx"), "--verbose"])
        shown = capsys.readouterr()
        assert "PADFREE_DEBUG" not in shown.err, (steps, last, shown.err)
        assert [letter for letter in shown.out + shown.err if not letter.isprintable() and letter != "\n"] == []
    assert refused > 20
