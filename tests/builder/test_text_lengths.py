# SPDX-License-Identifier: Apache-2.0
"""Lengths of texts in a model's tokens, and the padding that they would need."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from padfree.builder import text_plot
from padfree.builder.cli import main
from padfree.builder.text_lengths import BATCHES, TextLengths
from padfree.contract.installation import install_command
from tokenizers import Tokenizer

from tests.support.folders import ENCODER, TOKENIZER, write_folder

Capture = pytest.CaptureFixture[str]
SOME = ["the cat", "a dog runs over my house while it rains", "cat", "why", "the " * 20, "a " * 70]
LENGTHS = (5, 12, 3, 3, 22, 72)


def padded_share(lengths: list[int], batch: int) -> float:
    """The share of padding, computed by making the batches."""
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


def test_the_picture_shows_what_was_counted(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib", reason=f"needs matplotlib: {install_command('bench')}")
    texts, picture = tmp_path / "texts.txt", tmp_path / "lengths.svg"
    texts.write_text("\n".join(SOME) + "\n", encoding="utf-8")
    command = ["inspect", str(ENCODER), "--tokenizer", str(TOKENIZER), "--texts", str(texts)]
    assert main([*command, "--plot", str(picture)]) == 0
    assert f"wrote {picture}" in capsys.readouterr().out
    content = picture.read_text(encoding="utf-8")
    shown = re.findall(r">([^<>]+)</text>", content)
    lengths = [len(item.ids) for item in Tokenizer.from_file(str(TOKENIZER)).encode_batch(SOME)]
    share = f"{100 * padded_share(lengths, 32):.0f} %"
    for word in ("texts.txt in tokens of bert_tiny.onnx", f"mean {np.mean(lengths):.0f}", "texts in a batch", share):
        assert word in shown, shown
    assert f"{len(SOME)} texts, the longest {max(lengths)} tokens" in shown
    for colour in (text_plot.TEXT, text_plot.BAR, text_plot.COME, text_plot.SORTED):
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5  # the contrast that WCAG asks for, on white
        assert colour in content


def luminance(colour: str) -> float:
    """The relative luminance of an sRGB colour, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_a_picture_is_refused_before_any_work(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("a\n", encoding="utf-8")
    missing = ["inspect", str(tmp_path / "missing.onnx"), "--plot"]  # the missing file would be the next error
    assert main([*missing, str(tmp_path / "x.svg")]) == 1
    assert "pass --texts FILE, or leave --plot out" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "matplotlib.backend_bases", None)
    assert main([*missing, str(tmp_path / "x.svg"), "--texts", str(texts)]) == 1
    assert install_command("bench") in " ".join(capsys.readouterr().err.split())


def test_a_picture_without_a_suffix_is_refused_before_any_work(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    texts = tmp_path / "texts.txt"
    texts.write_text("a\n", encoding="utf-8")
    missing = ["inspect", str(tmp_path / "missing.onnx"), "--texts", str(texts), "--plot"]
    assert main([*missing, str(tmp_path / "x.doc")]) == 1
    assert "no picture has this suffix" in capsys.readouterr().err
    assert main([*missing, str(texts)]) == 1
    assert "--texts" in capsys.readouterr().err
