# SPDX-License-Identifier: Apache-2.0
"""The HTML report: what it says, that it needs no network, and what a real browser shows."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path

import pytest
from padfree.builder.cli import main

from tests.support.folders import write_folder

from . import planted_errors

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


class Page(HTMLParser):
    """The verdict, the cells of table rows by the table's id or class, and the elements with their attributes."""

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
    original = planted_errors.write_original(folder / "original.onnx", planted_errors.large_numbers_in_layer_3)
    good = planted_errors.write_rewritten(original, folder / "good.onnx")
    bad = planted_errors.write_rewritten(original, folder / "bad.onnx", precision="fp16")
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
    assert names.count("circle") > 20 * planted_errors.LAYERS
    assert f"layer {planted_errors.LAYERS - 1}" in content
    assert "numbers overflow fp16" in content


@pytest.mark.slow
def test_the_page_says_what_was_found_and_needs_no_network(page: Path) -> None:
    content = page.read_text()
    check(content)
    assert set(re.findall(r"https?://[^\"'<> ]+", content)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(script|link|img|iframe)", content)


def test_it_says_when_it_was_made(page: Path) -> None:
    (result,) = (attributes for tag, attributes in Page(page.read_text()).tags if tag == "time")
    age = datetime.now(timezone.utc) - datetime.fromisoformat(str(result["datetime"]))
    assert timedelta(0) <= age < timedelta(hours=1)


def test_a_folders_report_names_no_file_that_is_gone(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "encoder")
    files = [tmp_path / "report.html", tmp_path / "report.json"]
    command = ["compare", str(folder), "--max-seq-len", "20", "--html", str(files[0]), "--json", str(files[1])]
    assert main(command) == 0
    for file in files:
        content = file.read_text()
        assert str(folder) in content
        for word in re.findall(r"[\w./-]+\.onnx\b", content):
            assert (folder / word).exists(), word
        assert tempfile.gettempdir() not in content.replace(str(folder), "")


def colours(content: str, *, dark: bool) -> dict[str, str]:
    """The page's colours by their names."""
    light_part, dark_part = content.split("@media (prefers-color-scheme: dark)")
    match = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", light_part))
    return match | dict(re.findall(r"--([\w-]+): (#[0-9a-f]{3,6});", dark_part)) if dark else match


def luminance(colour: str) -> float:
    """The relative luminance of an sRGB colour, as WCAG 2 defines it."""
    digits = colour[1:] if len(colour) == 7 else "".join(2 * letter for letter in colour[1:])
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(share * part for share, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("dark", [False, True])
def test_everything_stands_out(page: Path, *, dark: bool) -> None:
    """Text has a contrast of 4.5 : 1, as WCAG asks for, and lines of plots have 3 : 1."""
    palette = colours(page.read_text(), dark=dark)
    assert (luminance(palette["page"]) < 0.1) == dark
    for name, least in {
        "text": 4.5,
        "quiet": 4.5,
        "good": 4.5,
        "bad": 4.5,
        **{f"series-{at}": 3 for at in range(5)},
    }.items():
        for back in ("page", "soft"):
            high, low = sorted((luminance(palette[name]), luminance(palette[back])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= least, (name, back)


def found_browser() -> str:
    browser = next((actual for name in BROWSERS if (actual := shutil.which(name))), None)
    if browser is None:
        pytest.skip(f"no browser here, looked for {', '.join(BROWSERS)}; install Debian's chromium")
    return browser


def test_it_fits_a_narrow_window(page: Path, tmp_path: Path) -> None:
    """Nothing but plots is wider than 500 pixels: they scroll, and rows of tables become blocks."""
    script = (
        "document.body.dataset.wide = Math.max(...[document.documentElement, ...document.querySelectorAll('table')]"
        ".map(element => element.scrollWidth));"
    )
    content = page.read_text().replace("</body>", f"<script>{script}</script></body>")
    (tmp_path / "measured.html").write_text(content)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=500,900"]
    command = [found_browser(), *options, "--dump-dom", (tmp_path / "measured.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    match = re.search(r'data-wide="(\d+)"', done.stdout)
    assert match is not None
    assert int(match[1]) <= 500


def test_a_browser_shows_it(page: Path, tmp_path: Path) -> None:
    browser = found_browser()
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--window-size=1100,3000"]
    picture = tmp_path / "page.png"
    for command in (["--dump-dom"], [f"--screenshot={picture}"]):
        done = subprocess.run(
            [browser, *options, *command, page.as_uri()], capture_output=True, text=True, timeout=120, check=True
        )
        if command == ["--dump-dom"]:
            check(done.stdout)
    assert picture.stat().st_size > 50_000  # an empty page of this size has 10 kB
