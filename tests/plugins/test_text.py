# SPDX-License-Identifier: Apache-2.0
"""Messages of the libraries in programs with a locale of their own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
PROGRAM = """
#include <cstdio>
#include <locale>
#include "common/text.h"
struct Commas : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\\3"; }
};
int main() {
  std::locale::global(std::locale(std::locale(), new Commas));
  std::puts(padfree::text("num_tokens is ", 4096, ", scale is ", 0.5f).c_str());
}
"""


def test_numbers_are_written_alike_in_every_locale(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++: apt-get install g++")
    source, program = tmp_path / "text.cpp", tmp_path / "text"
    source.write_text(PROGRAM)
    subprocess.run([compiler, "-std=c++17", f"-I{PLUGINS}", source, "-o", program], check=True)
    assert subprocess.check_output([program], text=True) == "num_tokens is 4096, scale is 0.5\n"
