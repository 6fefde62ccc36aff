# SPDX-License-Identifier: Apache-2.0
"""Which tiles the general attention kernel chooses, compiled for the host alone."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.native_headers import headers

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
#include <cstdio>
#include "attention/mma_choice.h"
int main() {
  using namespace padfree;
  AttentionParams p{};
  while (std::scanf("%d %d %d %d %d %d %d", &p.T, &p.B, &p.H, &p.D, &p.max_seq_len, &p.window_left,
                    &p.window_right) == 7) {
    const bool tall = wantsTallTiles(p, 132), order = wantsTilesInOrder(p, tall), longest = wantsLongestFirst(p, tall);
    std::printf("%s, %s\\n", !tall ? "ordinary" : wantsScoresAhead(p) ? "scores ahead" : wantsRing(p) ? "two buffers"
                : "one buffer", longest ? "longest first" : order ? "in order" : "first tiles last");
  }
}
"""
FULL, CAUSAL, NEAR = (-1, -1), (-1, 0), (256, 256)
CASES = [
    # tokens, sequences, heads, head size, longest expected sequence, window
    ((16384, 8, 16, 128, 2048, *FULL), "scores ahead, longest first"),
    ((16384, 32, 16, 128, 512, *FULL), "scores ahead, in order"),
    ((16384, 8, 16, 128, 2048, *CAUSAL), "two buffers, longest first"),
    ((16384, 8, 16, 128, 2048, *NEAR), "two buffers, longest first"),
    ((16384, 32, 16, 128, 512, *CAUSAL), "ordinary, first tiles last"),
    ((16384, 32, 16, 112, 512, *FULL), "one buffer, in order"),
    ((16384, 8, 16, 112, 2048, *NEAR), "one buffer, longest first"),
    ((16384, 32, 12, 96, 512, *FULL), "scores ahead, in order"),
    ((16384, 16, 12, 96, 1024, *FULL), "one buffer, longest first"),
    ((10000, 64, 16, 128, 256, *FULL), "ordinary, in order"),
    ((2000, 16, 16, 128, 64, *FULL), "ordinary, first tiles last"),
    ((1000, 64, 16, 128, 64, *FULL), "ordinary, first tiles last"),
    ((16384, 8, 16, 128, 0, *FULL), "scores ahead, longest first"),
    ((16384, 32, 16, 128, 0, *FULL), "scores ahead, in order"),
    ((16384, 64, 12, 64, 512, *FULL), "ordinary, in order"),
    ((6000, 64, 12, 64, 128, *FULL), "ordinary, first tiles last"),
    # sequences that are all about as long
    ((1024, 1, 16, 128, 1024, *FULL), "scores ahead, longest first"),
    ((512, 1, 16, 128, 512, *FULL), "ordinary, longest first"),
    ((1950, 16, 16, 128, 128, *FULL), "scores ahead, longest first"),
    ((1900, 16, 16, 128, 128, *FULL), "ordinary, first tiles last"),
    ((2048, 16, 12, 128, 128, *FULL), "ordinary, first tiles last"),
    ((4096, 16, 12, 96, 256, *FULL), "ordinary, longest first"),
    ((10240, 40, 12, 96, 256, *FULL), "scores ahead, in order"),
    ((8192, 64, 12, 64, 128, *FULL), "ordinary, first tiles last"),
    ((12800, 200, 4, 256, 64, *FULL), "ordinary, in order"),
]


def test_tall_tiles_of_heads_of_up_to_128(tmp_path: Path) -> None:
    compiler, folders = shutil.which("g++"), headers()
    if compiler is None or folders is None:
        pytest.skip("needs g++, TensorRT's and CUDA's headers: apt-get install g++ cargo && pip install '.[dev]'")
    (tmp_path / "main.cpp").write_text(PROGRAM, encoding="utf-8")
    include = [f"-I{folder}" for folder in (ROOT / "plugins", folders[1])]
    command = [compiler, "-std=c++17", *include, str(tmp_path / "main.cpp"), "-o", str(tmp_path / "main")]
    subprocess.run(command, check=True, timeout=120)
    lines = "\n".join(" ".join(map(str, numbers)) for numbers, _ in CASES)
    done = subprocess.run([str(tmp_path / "main")], input=lines, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [shape for _, shape in CASES]
