# SPDX-License-Identifier: Apache-2.0
"""The tables of trained models, from a record."""

from __future__ import annotations

from benchmarks.accuracy import report as trained_report

TENSORS = [
    ["a", "PadfreeEmbedding", 1e-4],
    ["b", "PadfreeAttention", 4e-4],
    ["c", "PadfreeLayerNorm", 3e-4],
    ["d", "PadfreeAttention", 7e-4],
]
RECORD = {
    "variant": "plain",
    "scores": {
        trained_report.REFERENCE: {
            "percent": {"answers": 80.0, "tags": 99.0},
            "changed_percent": {"answers": 0.0, "tags": 0.0},
        },
        "packed fp16": {
            "percent": {"answers": 80.05, "tags": 98.98},
            "changed_percent": {"answers": 0.25, "tags": 0.125},
            "margin": {"answers": 0.037, "tags": 0.01},
        },
    },
    "inside": {"fp16": {"tensors": TENSORS}},
}


def test_scores() -> None:
    heading, _, reference, packed = trained_report.scores([RECORD]).splitlines()
    assert heading == "| variant | model | answers, % | tags, % | off by, points | other answers, % |"
    assert reference == "| plain | padded PyTorch fp32 | 80.000 | 99.000 | - | - |"
    assert packed == "| plain | packed fp16 | 80.050 | 98.980 | +0.050 ± 0.037 | 0.250 |"


def test_errors_by_layer() -> None:
    lines = trained_report.errors([RECORD]).splitlines()
    assert lines[0] == "| layer | plain, fp16 |"
    assert lines[2:] == [
        "| embedding | 1.0e-04 to 1.0e-04 |",
        "| 0 | 3.0e-04 to 4.0e-04 |",
        "| 1 | 7.0e-04 to 7.0e-04 |",
    ]
