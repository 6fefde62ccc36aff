# SPDX-License-Identifier: Apache-2.0
"""The HTML report: what it says, that it needs no network, and what a real browser shows of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from padfree.builder.cli import main

from . import planted

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """Texts of table rows by the table's id or class, the verdict, and every other element's name."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: dict[str, list[list[str]]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.verdict = ""
        self._table = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._open.append(tag)
        if tag == "table":
            self._table = attributes.get("id") or attributes.get("class") or ""
        elif tag == "tr":
            self.rows.setdefault(self._table, []).append([])
        elif tag in ("td", "th"):
            self.rows[self._table][-1].append("")

    def handle_data(self, data: str) -> None:
        if "h1" in self._open:
            self.verdict += data
        if self._table and self.rows.get(self._table) and self.rows[self._table][-1]:
            self.rows[self._table][-1][-1] += data.strip()

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass
        if tag == "table":
            self._table = ""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on a good file and one that overflows."""
    folder = tmp_path_factory.mktemp("page")
    original = planted.write_original(folder / "original.onnx", planted.large_numbers_in_layer_3)
    good = planted.write_rewritten(original, folder / "good.onnx")
    bad = planted.write_rewritten(original, folder / "bad.onnx", precision="fp16")
    path = folder / "report.html"
    assert main(["compare", str(original), str(good), str(bad), "--max-seq-len", "20", "--html", str(path)]) == 1
    return path


def check(content: str) -> None:
    shown = Page(content)
    assert shown.verdict.startswith(
        "Failed: onnxrt-packed: bad.onnx differs from the original: output 'last_hidden_state'"
    )
    assert "something overflows" in shown.verdict
    runners = shown.rows["runners"][1:]
    assert [row[:3] for row in runners] == [
        ["onnxrt-packed: good.onnx", "fp32", "yes"],
        ["onnxrt-packed: bad.onnx", "fp16", "no"],
    ]
    assert runners[1][3] == "not finite"
    assert {row[0] for row in shown.rows["environment"]} >= {"onnxruntime", "python"}
    names = [tag for tag, _ in shown.tags]
    assert names.count("svg") == 3  # lengths, and the tensors of both files
    assert names.count("circle") > 100
    assert "layer 7" in content
    assert "numbers overflow fp16" in content


def test_the_page_says_what_was_found_and_needs_no_network(page: Path) -> None:
    content = page.read_text()
    check(content)
    assert set(re.findall(r"https?://[^\"'<> ]+", content)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)", content)


def test_a_browser_shows_it(page: Path, tmp_path: Path) -> None:
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser here, looked for {', '.join(BROWSERS)}; install Debian's chromium")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1100,3000"]
    picture = tmp_path / "page.png"
    for command in (["--dump-dom"], [f"--screenshot={picture}"]):
        done = subprocess.run(
            [browser, *options, *command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        if command == ["--dump-dom"]:
            check(done.stdout)
    assert picture.stat().st_size > 50_000  # an empty page of this size has 10 kB
