# SPDX-License-Identifier: Apache-2.0
"""Pictures from recorded measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.pages import plots, precision_plot, style
from benchmarks.pages import sweep_plot as sweep_plots

ATTENTION = [
    {"case": "ragged", "ours_us": 16.0, "peers_us": {"FA2 varlen": 36.0, "flashinfer": 20.0}, "gpu": "NVIDIA H200"},
    {"case": "equal", "ours_us": 90.0, "peers_us": {"cuDNN": 88.0}, "gpu": "NVIDIA H200"},
    {"case": "failed", "ours_us": None, "peers_us": {"cuDNN": 88.0}, "gpu": "NVIDIA H200"},
]
END_TO_END = [
    {
        "set": "targets",
        "case": "targets: bert-base, 16 x 512",
        "model": "bert-base",
        "batch": 16,
        "seq_len": 512,
        "tokens": 4802,
        "slots": 8192,
        "ours_ms": 2.1,
        "limit_ms": 1.5,
        "peers_ms": {
            "TensorRT padded (weakly typed fp16)": 4.9,
            "TensorRT padded (strongly typed fp16)": 5.3,
            "torch.compile padded": 4.0,
        },
        "gpu": "NVIDIA H200",
    }
]


def sweep_record(group: str, batch: int, seq_len: int, tokens: int, model: str = "bert-base") -> dict[str, Any]:
    """A record of the sweep."""
    return {
        "set": group,
        "case": f"{group}: {model}, {batch} x {seq_len}, {tokens}",
        "model": model,
        "batch": batch,
        "seq_len": seq_len,
        "tokens": tokens,
        "slots": batch * seq_len,
        "ours_ms": 1.0,
        "peers_ms": {"TensorRT padded, weakly typed": 1.7, "torch.compile, padded": 1.6},
        "limit_ms": 0.8,
        "gpu": "NVIDIA H200",
    }


SWEEP = [
    *(sweep_record("length", 16, length, 10 * length) for length in (64, 128, 192)),
    *(sweep_record("fill", 16, 512, tokens) for tokens in (819, 4096, 8192)),
    *(sweep_record("tokens", 1, 512, tokens) for tokens in (128, 65536)),
    sweep_record("model", 16, 512, 4915, "distilbert"),
]


def write(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def test_the_last_line_of_a_case_counts(tmp_path: Path) -> None:
    write(tmp_path / "x.jsonl", [*ATTENTION, {**ATTENTION[0], "ours_us": 15.0}])
    records = plots.read(tmp_path / "x.jsonl")
    assert [record["case"] for record in records] == ["ragged", "equal", "failed"]
    assert records[0]["ours_us"] == 15.0


def test_bars_show_the_better_engine_of_tensorrt_and_the_fastest_first() -> None:
    (actual,) = plots.bars(END_TO_END)
    assert [(bar.label.split(",")[0].split(":")[0], bar.time_ms) for bar in actual] == [
        ("limit", 1.5),
        ("padfree", 2.1),
        ("torch.compile padded", 4.0),
        ("TensorRT", 4.9),
    ]
    assert len({bar.colour for bar in actual}) == len(actual)


def test_a_peer_has_one_colour_in_all_models() -> None:
    other = {
        **END_TO_END[0],
        "peers_ms": {"varseqlen": 3.0, "TensorRT padded (weakly typed fp16)": 4.0},
        "limit_ms": None,
    }
    first, second = ({bar.label: bar.colour for bar in actual} for actual in plots.bars([END_TO_END[0], other]))
    assert list(second) == ["padfree", "varseqlen", "TensorRT, padded"]
    assert all(first[name] == colour for name, colour in second.items() if name in first)
    assert second["varseqlen"] not in first.values()


def test_ratios_are_above_one_where_ours_is_faster() -> None:
    assert plots.ratios(ATTENTION[0]) == {"FA2 varlen": 2.25, "flashinfer": 1.25}
    before = {**ATTENTION[0], "earlier_peers": {"cuDNN": 8.0, "of no column": 1.0}}
    assert plots.ratios(before, earlier=True) == {"cuDNN": 0.5}


def test_peers_of_an_earlier_run_are_drawn_and_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    newer = {**ATTENTION[0], "peers_us": {"flash-attn-4": 20.0}}
    write(tmp_path / "attention.jsonl", [ATTENTION[0], newer])
    (picture,) = plots.draw_all(tmp_path, tmp_path)
    text = " ".join(ElementTree.parse(picture).getroot().itertext())
    assert all(word in text for word in ("FA2 varlen", "flashinfer", "flash-attn-4", "hollow: from an earlier run"))


def test_nothing_recorded_draws_nothing(tmp_path: Path) -> None:
    assert plots.draw_all(tmp_path, tmp_path) == []


def test_targets_alone_draw_no_sweep(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "end_to_end.jsonl", END_TO_END)
    assert plots.draw_all(tmp_path, tmp_path) == [tmp_path / "end_to_end.svg"]


def test_pictures_are_readable_svg_and_repeat_byte_by_byte(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(tmp_path / "attention.jsonl", ATTENTION)
    write(tmp_path / "end_to_end.jsonl", [*END_TO_END, *SWEEP])
    first = plots.draw_all(tmp_path, tmp_path / "first")
    second = plots.draw_all(tmp_path, tmp_path / "second")
    assert [path.name for path in first] == ["attention.svg", "end_to_end.svg", "sweep.svg"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    texts = [" ".join(ElementTree.parse(path).getroot().itertext()) for path in first]
    assert all(word in texts[0] for word in ("FA2 varlen", "flashinfer", "ragged: 16.0 us", "NVIDIA H200"))
    assert "failed" not in texts[0]
    assert all(word in texts[1] for word in ("4.90", "4.00", "2.10", "1.50", "41% padding", "lower is better"))
    assert all(word in texts[2] for word in ("16 texts, 40 % padding", "that is no padding", "DistilBERT", "65536"))
    assert "One text" not in texts[2]


def test_a_limit_that_padfree_is_below_is_not_drawn() -> None:
    record = {**SWEEP[0], "ours_ms": 0.001}
    assert not any(name.startswith("limit") for name in sweep_plots.ratios(record))


def test_text_of_pictures_stands_out() -> None:
    """The contrast on white is at least 4.5 : 1, as the guidelines for accessible pages ask."""
    assert style.contrast("#000000", "#ffffff") == pytest.approx(21)
    assert style.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)  # a well-known grey that just fails
    assert style.contrast(style.INK, "#ffffff") >= 4.5


def trained_record(changed: Mapping[str, float], variant: str = "plain") -> dict[str, Any]:
    """A record of trained models: the given per cent of answers change in one task, and half of that in another."""
    scores = {
        f"packed {name}": {"changed_percent": {"tags": part / 2, "answers": part}} for name, part in changed.items()
    }
    return {"case": f"trained, {variant}", "variant": variant, "scores": scores}


def timed_record(name: str, precision: str, time_ms: float) -> dict[str, Any]:
    record = {**sweep_record(name, 16, 512, 4915), "precision": precision, "ours_ms": time_ms}
    return {**record, "case": f"{name}, {precision}"}


def test_a_point_has_the_time_and_the_task_in_which_most_answers_change() -> None:
    timed = [timed_record("fp8", "fp16", 1.8), timed_record("precisions", "fp16", 1.7)]
    timed += [timed_record("precisions", "fp32", 9.0), {**timed_record("fp8", "fp8", 5.0), "batch": 1}]
    trained = [trained_record({"fp16": 0.1, "fp8": 2.5}), trained_record({"fp16": 0.9}, "outliers")]
    actual = precision_plot.points(timed, trained)
    assert [(point.precision, point.time_ms, point.changed_percent) for point in actual] == [
        ("fp32", 9.0, 0.0),
        ("fp16", 1.7, 0.1),
    ]


def test_the_picture_of_precisions_names_what_was_not_timed(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write(
        tmp_path / "end_to_end.jsonl", [timed_record("fp8", name, time) for name, time in (("fp16", 1.7), ("fp8", 1.1))]
    )
    write(tmp_path / "trained.jsonl", [trained_record({"fp16": 0.1, "bf16": 1.2, "fp8": 2.5})])
    assert plots.draw_all(tmp_path, tmp_path) == [tmp_path / "precisions.svg"]
    text = " ".join(ElementTree.parse(tmp_path / "precisions.svg").getroot().itertext())
    assert all(word in text for word in ("fp8: 1.10 ms, 2.5 %", "lower is better"))
    assert all(f"{name}, time not measured" in text for name in ("fp32: 0 %", "bf16: 1.2 %"))


def test_the_sweep_takes_the_better_engine_of_tensorrt() -> None:
    record = {**SWEEP[0], "peers_ms": {"TensorRT padded, weakly typed": 1.7, "TensorRT padded, strongly typed": 1.5}}
    assert sweep_plots.ratios(record) == {"TensorRT, padded": 1.5, "limit: GEMMs of packed tokens alone": 0.8}


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("H 12, B 16, lengths 102 to 512", "12 heads, 16 texts of 102 to 512 tokens"),
        ("H 12, B 1, length 2048", "12 heads, one text of 2048 tokens"),
        ("H 16, D 64, 16k tokens of 128", "16 heads, 16k tokens in texts of 128"),
        ("H 16, D 128, 16k tokens of 8192", "16 heads of 128, 16k tokens in texts of 8192"),
        ("H 12, one of 8192 among 63 of 32", "12 heads, one text of 8192 tokens among 63 of 32"),
        ("general kernel, H 12, B 16, lengths 26 to 128", "general kernel, 12 heads, 16 texts of 26 to 128 tokens"),
    ],
)
def test_cases_of_the_picture_need_no_letters(case: str, words: str) -> None:
    assert plots.in_words(case) == words
