# SPDX-License-Identifier: Apache-2.0
"""Tables from recorded measurements: what they show, and that the documents hold them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kernels import linear_report
from benchmarks.pages import general_tables, model_tables, plugin_tables, tables
from benchmarks.pages.model_tables import VARLEN
from benchmarks.records import LIMIT, PADFREE, TENSORRT, earlier_times_of, read, times_of

RESULTS = tables.ROOT / "benchmarks" / "results" / "h200"


def record(group: str, tokens: int, ours_ms: float, **changes: Any) -> dict[str, Any]:
    """A record of BERT-base, 16 x 512."""
    return {
        "set": group,
        "case": f"{group}: {tokens}",
        "model": "bert-base",
        "batch": 16,
        "seq_len": 512,
        "tokens": tokens,
        "slots": 8192,
        "ours_ms": ours_ms,
        "peers_ms": {"TensorRT padded, weakly typed": 5.0, VARLEN: 2.5},
        "limit_ms": 1.6,
        "errors": {"padfree": 1.9e-3, "PyTorch eager, padded": 2e-3},
        "commit": "abc",
        "gpu": "H200",
        **changes,
    }


@pytest.mark.parametrize("name", tables.DOCUMENTS)
def test_the_documents_hold_what_the_records_say(name: str) -> None:
    text = (tables.ROOT / name).read_text("utf-8")
    assert "<!-- table: " in text
    assert tables.fill(text, RESULTS) == text, "run: python -m benchmarks.pages.tables"


def test_peers_of_an_earlier_run_stand_in_brackets(tmp_path: Path) -> None:
    eager = {"PyTorch eager, padded": 5.5, "TensorRT padded, strongly typed": 4.0}
    lines = [record("targets", 4915, 2.0), record("targets", 4915, 1.9, peers_ms=eager), record("targets", 4915, 1.8)]
    path = tmp_path / "end_to_end.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    (last,) = read(path)
    assert earlier_times_of(last) == {"PyTorch eager, padded": 5.5}
    rows = dict(line.strip("| \n").split(" | ", 1) for line in model_tables.targets([last]).splitlines()[2:-2])
    assert (rows["PyTorch eager, padded"], rows["**padfree**"], rows[TENSORRT]) == (
        "(5.50)",
        "**1.80**",
        "5.00",
    )


def test_models_with_positions_stand_beside_what_was_aimed_at(tmp_path: Path) -> None:
    peers = {"peers_ms": {"torch.compile, padded": 8.0, VARLEN: 3.6}}
    lines = [
        record("positions", 4915, 9.0, case="old", model="deberta", commit="old"),
        record("positions", 4915, 2.0, case="m", model="mpnet", **peers),
        record("positions", 4915, 2.5, case="n", model="modernbert", limit_ms=2.0, **peers),
        record("positions", 4915, 1.8, case="b", peers_ms={}),
        record("targets", 4915, 1.6, commit="newer"),
    ]
    (tmp_path / "end_to_end.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    rows = model_tables.positions(tmp_path).splitlines()
    assert rows[2] == "| BERT-base, 16 x 512, 4915 tokens | 1.80 | - | - | 1.60 | 1.12 |  |"
    assert rows[3].endswith("| 2.00 | 8.00 | 3.60 | 1.60 | 1.25 | 1.05 x BERT-base: 1.11 missed |")
    assert rows[4].split(" | ")[-1] == (
        "2.4 ms: 2.50 missed; 1.3 x the limit: 1.25 met; 1.4 x as fast as varlen: 1.44 met |"
    )
    assert "Measured at commit abc:" in rows[-1]
    (tmp_path / "end_to_end.jsonl").write_text("", "utf-8")
    assert model_tables.positions(tmp_path) == model_tables.UNMEASURED


def test_every_table_is_in_a_document() -> None:
    text = "".join((tables.ROOT / name).read_text("utf-8") for name in tables.DOCUMENTS)
    assert {name for _, name, _ in tables.BLOCK.findall(text)} == set(tables.TABLES)


def test_a_block_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    lines = [record("targets", 4096, 3.0), record("targets", 4096, 2.0)]
    (tmp_path / "end_to_end.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = "a\n<!-- table: goals -->\nold\n<!-- end -->\nz\n"
    result = tables.fill(text, tmp_path)
    assert result.startswith("a\n<!-- table: goals -->\n\n| reached")
    assert result.endswith("|\n\nMeasured at commit abc: H200.\n\n<!-- end -->\nz\n")
    assert "| BERT-base, 16 x 512, 4096 tokens | 1.25 (1.18) | 2.50 (2.8) | 1.25 (1.25) |" in result
    assert tables.fill(result, tmp_path) == result


def test_targets_have_ours_first_the_limit_last_and_dashes_for_what_is_missing() -> None:
    other = record("targets", 100, 0.5, case="other", peers_ms={"TensorRT padded, strongly typed": 1.0}, limit_ms=None)
    rows = model_tables.targets([record("targets", 4096, 2.0), other, record("fill", 1, 9.0)]).splitlines()
    assert rows[2:10] == [
        "| **padfree** | **2.00** | **0.500** |",
        "| TensorRT, padded | 5.00 | 1.00 |",
        f"| {VARLEN} | 2.50 | - |",
        f"| {LIMIT} | 1.60 | - |",
        "| error: padfree | 1.9e-03 | 1.9e-03 |",
        "| error: PyTorch fp16 | 2.0e-03 | 2.0e-03 |",
        "",
        "Measured at commit abc: H200.",
    ]


def test_figures_of_several_commits_say_so_in_the_table() -> None:
    other = record("targets", 100, 0.5, case="other", commit="def")
    both = [record("targets", 4096, 2.0), other]
    assert "| commit | abc | def |" in model_tables.targets(both).splitlines()
    assert [line.split(" | ")[-1] for line in model_tables.goals(both).splitlines()[:4]] == [
        "commit |",
        "---: |",
        "abc |",
        "def |",
    ]


def test_sweeps_are_in_order_and_sets_without_records_leave_no_trace() -> None:
    peers = {"peers_ms": {"TensorRT padded, weakly typed": 5.0}}
    text = model_tables.sweep([record("fill", 8192, 4.0, **peers), record("fill", 819, 1.0, **peers)])
    assert text.count("###") == text.count("images/sweep.svg") == 1
    assert text.splitlines()[-4:-2] == [
        "| 0.1 | 819 | 1.00 | 5.00 | 5.00 | 0.62 |",
        "| 1.0 | 8192 | 4.00 | 5.00 | 1.25 | 2.50 |",
    ]
    assert model_tables.sweep([]) == ""
    text = model_tables.sweep(
        [
            record("tokens", 64, 2.0, batch=1, peers_ms={VARLEN: 3.0}),
            record("tokens", 900, 4.0, peers_ms={}),
        ]
    )
    assert text.splitlines()[-6:-2] == [
        f"| batch | tokens | padfree, ms | {VARLEN} | PyTorch varlen / padfree | padfree / limit |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| 1 x 512 | 64 | 2.00 | 3.00 | 1.50 | 1.25 |",
        "| 16 x 512 | 900 | 4.00 | - | - | 2.50 |",
    ]
    other = record("model", 4096, 2.0, model="deberta", packed_flops_share=0.814, **peers)
    assert model_tables.sweep([other]).splitlines()[-3] == "| DeBERTa, 81% | 4096 | 2.00 | 5.00 | 2.50 | 1.25 |"


def test_fp8_stands_beside_fp16_and_what_was_aimed_at(tmp_path: Path) -> None:
    titles = {"TensorRT padded, products in e4m3": 3.0}
    lines = [
        record("fp8", 4915, 9.0, precision="fp8", peers_ms={"packed, by TensorRT": 2.0}, commit="old"),
        record("fp8", 4915, 1.2, precision="fp8", peers_ms=titles, limit_ms=0.8),
        record("fp8", 4915, 1.8, precision="fp16", case="half"),
        record("fp8", 128, 0.25, precision="fp8", case="short", batch=1, seq_len=128, peers_ms={}, limit_ms=None),
    ]
    (tmp_path / "end_to_end.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    rows = model_tables.fp8(tmp_path).splitlines()
    assert rows[2] == "| BERT-base, 16 x 512 | 4915 | 1.20 | 1.80 | 1.50 | 3.00 | (2.00) | 0.800 | 1.50 | 1.18 ms |"
    assert rows[3] == "| BERT-base, 1 x 128 | 128 | 0.250 | - | - | - | - | - | - |  |"
    assert model_tables.fp8(tmp_path / "nothing") == model_tables.UNMEASURED


def test_fp16_of_another_commit_stands_in_brackets_beside_fp8(tmp_path: Path) -> None:
    lines = [
        record("fp8", 4915, 1.8, precision="fp16", case="half", commit="old"),
        record("fp8", 4915, 1.3, precision="fp8", peers_ms={}, limit_ms=None, commit="old"),
        record("fp8", 4915, 1.2, precision="fp8", peers_ms={}, limit_ms=None, commit="new"),
        record("fp8", 128, 0.25, precision="fp8", case="short", batch=1, seq_len=128, peers_ms={}, commit="old"),
    ]
    (tmp_path / "end_to_end.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    rows = model_tables.fp8(tmp_path).splitlines()
    assert rows[2].startswith("| BERT-base, 16 x 512 | 4915 | 1.20 | (1.80) | (1.50) |")
    assert rows[3].startswith("| BERT-base, 1 x 128 | 128 | 0.250 | - | - |")
    assert [row.split(" | ")[-1] for row in rows[2:4]] == ["new |", "old |"]
    assert "Figures in brackets were measured at old." in " ".join(rows)


def test_accuracy_in_fp8_stands_beside_other_precisions(tmp_path: Path) -> None:
    """The table has the interval of the difference, not that of the score."""
    figures = {"cosine_mean": 1.0, "cosine_worst": 0.99996, "top_1": 44.0, "top_1_interval": [39.2, 48.8]}
    results = {
        "fp32": {**figures, "against_fp32": 0.0, "against_fp32_interval": [0.0, 0.0]},
        "fp8": {**figures, "cosine_mean": 0.99774, "against_fp32": -1.0, "against_fp32_interval": [-2.5, 0.25]},
    }
    path = tmp_path / "cpu" / "fp8.jsonl"
    path.parent.mkdir()
    line = {"case": "mpnet, fp8", "pairs": 400, "precisions": results, "commit": "abc"}
    path.write_text(json.dumps(line) + "\n", "utf-8")
    rows = tables.TABLES["fp8_accuracy"](tmp_path / "h200").splitlines()
    assert rows[2] == "| mpnet, 400 | fp32 | 1.000000 | 0.999960 | 44.0 % | - |"
    assert rows[3] == "| mpnet, 400 | fp8 | 0.9977 | 1.0000 | 44.0 % | -1.0 (-2.5 to +0.2) |"
    assert rows[-1] == "Computed at commit abc."
    gains = {"ndcg_10": 60.04, "ndcg_10_against_fp32": -0.31, "ndcg_10_against_fp32_interval": [-0.52, 0.04]}
    later = {**line, "case": "bge, fp8", "precisions": {"fp8": results["fp8"] | gains}}
    path.write_text("".join(json.dumps(item) + "\n" for item in (line, later)), "utf-8")
    rows = tables.TABLES["fp8_accuracy"](tmp_path / "h200").splitlines()
    assert rows[3].endswith("| 44.0 % | -1.0 (-2.5 to +0.2) | - | - |")
    assert rows[4].endswith("| 44.0 % | -1.0 (-2.5 to +0.2) | 60.0 % | -0.3 (-0.5 to +0.0) |")


def test_plugins_stand_beside_padfree() -> None:
    peers = {"NVIDIA varseqlen plugins": 3.0}
    head, rows, chosen = plugin_tables.plugins(
        [record("targets", 4915, 2.0, peers_ms=peers), record("targets", 4915, 1.0), record("fp8", 1, 1.0)],
        model_tables.NAMES,
    )
    assert len(chosen) == 1
    assert len(head) == 4
    assert rows == [["BERT-base, 16 sequences of up to 512 tokens", "2.00", "3.00", "1.50"]]


def test_figures_in_sentences_are_those_of_the_records() -> None:
    """The times of BERT-base at 16 x 512 are in choosing.md, and the ratios to padded TensorRT are in the README."""
    chosen = model_tables.of_set(read(RESULTS / "end_to_end.jsonl"), "targets")
    times = next(
        map(
            times_of,
            (r for r in chosen if (r["model"], r["batch"], r["seq_len"]) == ("bert-base", 16, 512)),
        )
    )
    interface, packed, padded = (times[name] for name in ("padfree, padded interface", PADFREE, TENSORRT))
    words = " ".join((tables.ROOT / "docs" / "guide" / "choosing.md").read_text("utf-8").split())
    assert f"takes {interface:.2f} ms on an H200, where the packed engine takes {packed:.2f} and padded" in words
    assert f"and padded TensorRT {padded:.2f} ([performance]" in words
    ratios = [times_of(r)[TENSORRT] / r["ours_ms"] for r in chosen]
    readme = " ".join((tables.ROOT / "README.md").read_text("utf-8").split())
    assert f"padfree is {min(ratios):.1f} to {max(ratios):.1f} times as fast as padded TensorRT" in readme


def test_sentences_about_gemms_are_those_of_the_records() -> None:
    """docs/internals/linear.md says by how many per cent GEMMs, and a layer's sum of them, differ from cuBLAS."""
    cublas, over = {"cublas", *linear_report.CUBLAS}, {}
    for each in read(RESULTS / "linear.jsonl"):
        times = each["times_us"]
        ratio = times["padfree"] / min(time for name, time in times.items() if name in cublas)
        over[each["case"]] = round(100 * (ratio - 1))
        assert times.get(linear_report.FUSED, times["padfree"]) >= times["padfree"]
    up = [over[case] for case in over if "gelu" in case]
    down = [over[f"{tokens} x 4096 x 1024"] for tokens in (1403, 4802, 7579)]
    base, large = (
        {tokens: over[f"{size}, {tokens} tokens, sum"] for tokens in (128, 1403, 4802, 7579)}
        for size in ("base", "large")
    )
    assert base[1403] == base[4802]
    words = " ".join((tables.ROOT / "docs" / "internals" / "linear.md").read_text("utf-8").split())
    assert (
        f"take {-base[1403]} % less time than cuBLAS without GELU at 1403 and 4802 tokens, and {-base[128]} %" in words
    )
    assert f"take {-large[128]} % less at 128 tokens, and up to {max(large.values())} % more at 1403 to 7579" in words
    assert f"up GEMMs, by up to {max(up)} %; cuBLAS computes no GELU there" in words
    assert (
        f"by {min(down)} to {max(down)} % in a BERT-large, and by {over['4802 x 1536 x 384']} % at width 384" in words
    )
    others = [case for case in over if not any(part in case for part in ("gelu", "sum", "chain", "x 4096 x"))]
    assert max(over[case] for case in others if case != "4802 x 1536 x 384") == 1
    assert "- others by at most 1 %." in words


def test_padded_tensorrt_of_another_run_stands_in_brackets_beside_general_kernels() -> None:
    times = {"padfree": 2.0, "sm_80 GEMMs": 3.0}
    own = {"case": "bert-base, 16 x 512, fp16", "tokens": 4915, "ms": times, "commit": "abc", "gpu": "H200"}
    beside = {**own, "case": "bert-base, 1 x 128, fp16", "tokens": 128, "ms": {**times, "padded TensorRT": 4.0}}
    int8 = {**own, "case": "bert-base, 16 x 512, int8"}
    others = [record("targets", 4915, 1.0, precision="fp16"), record("fill", 128, 1.0, precision="fp16")]
    rows = general_tables.general([own, beside, int8], others).splitlines()[2:5]
    assert [row.strip("| ").split(" | ")[1:] for row in rows] == [
        ["4915", "2.00", "-", "3.00", "(5.00)"],
        ["128", "2.00", "-", "3.00", "4.00"],
        ["4915", "2.00", "-", "3.00", "-"],
    ]
