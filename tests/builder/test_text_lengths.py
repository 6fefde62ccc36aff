# SPDX-License-Identifier: Apache-2.0
"""Lengths of texts in a model's tokens, and the padding that they would cost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from padfree.builder.cli import main
from padfree.builder.text_lengths import BATCHES, TextLengths
from tokenizers import Tokenizer

from tests.support.folders import ENCODER, TOKENIZER, write_folder

Capture = pytest.CaptureFixture[str]
SOME = ["the cat", "a dog runs over my house while it rains", "cat", "why", "the " * 20, "a " * 70]
LENGTHS = (5, 12, 3, 3, 22, 72)


def padded_share(lengths: list[int], batch: int) -> float:
    """By making the batches."""
    slots = kept = 0
    for at in range(0, len(lengths), batch):
        part = lengths[at : at + batch]
        grid = np.zeros((len(part), max(part)))
        for row, length in zip(grid, part, strict=True):
            row[:length] = 1
        slots, kept = slots + grid.size, kept + int(grid.sum())
    return 1 - kept / slots


@pytest.mark.parametrize("batch", [1, 2, 4, 5, 100])
def test_padding_is_that_of_batches(batch: int) -> None:
    actual = TextLengths(LENGTHS, 0)
    assert actual.padding(batch) == pytest.approx(padded_share(list(LENGTHS), batch))
    assert actual.padding(batch, in_order_of_length=True) == pytest.approx(padded_share(sorted(LENGTHS), batch))


def test_every_text_is_in_one_bucket() -> None:
    actual = TextLengths((0, 8, 9, 16, 17, 32, 33), 0)
    assert actual.buckets() == [(0, 8, 2), (9, 16, 2), (17, 32, 2), (33, 64, 1)]
    assert actual.percentiles() == {50: 16, 90: 33, 99: 33}
    assert TextLengths((0, 0), 0).padding(2) == 0


@pytest.mark.parametrize("given", ["folder", "exported"])
def test_inspect_counts_with_the_models_tokenizer(given: str, tmp_path: Path, capsys: Capture) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(SOME) + "\n", encoding="utf-8")
    if given == "folder":
        command = ["inspect", str(write_folder(tmp_path / "small"))]
    else:
        command = ["inspect", str(ENCODER), "--tokenizer", str(TOKENIZER.parent)]
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.no_truncation()
    wanted = [min(len(item.ids), 64) for item in tokenizer.encode_batch(SOME)]
    assert main([*command, "--texts", str(texts), "--max-length", "64", "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)["texts"]
    assert (actual["count"], actual["tokens"], actual["longest"]) == (len(SOME), sum(wanted), max(wanted))
    assert actual["cut"] == sum(len(item.ids) > 64 for item in tokenizer.encode_batch(SOME))
    assert actual["padding"] == {str(batch): pytest.approx(padded_share(wanted, batch)) for batch in BATCHES}
    assert main([*command, "--texts", str(texts), "--max-length", "64"]) == 0
    shown = capsys.readouterr().out
    assert f"6 texts, {sum(wanted)} tokens, {np.mean(wanted):.1f} on average" in shown
    saved = padded_share(wanted, 32)
    assert f"{1 / (1 - saved):.1f} times as many tokens are computed: without padding {100 * saved:.0f} %" in shown
    tables = [line for line in shown.splitlines() if line.startswith(("│", "┃", "┏", "┡", "└"))]
    assert tables
    assert max(map(len, tables)) <= 80


def test_what_is_missing_is_named(tmp_path: Path, capsys: Capture) -> None:
    model, texts = ENCODER, tmp_path / "texts.txt"
    texts.write_text("a\n", encoding="utf-8")
    assert main(["inspect", str(model), "--texts", str(texts)]) == 1
    assert "keeps no tokenizer, and lengths are counted in its tokens; pass --tokenizer" in " ".join(
        capsys.readouterr().err.split()
    )
    texts.write_text("", encoding="utf-8")
    assert main(["inspect", str(model), "--texts", str(texts), "--tokenizer", str(TOKENIZER)]) == 1
    assert "texts.txt: holds no text" in capsys.readouterr().err
