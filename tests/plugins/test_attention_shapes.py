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
    std::printf("%s\\n", !wantsTallTiles(p) ? "ordinary" : wantsRing(p) ? "two buffers" : "one buffer");
  }
}
"""
FULL, CAUSAL, NEAR = (-1, -1), (-1, 0), (256, 256)
CASES = [
    # tokens, sequences, heads, head size, longest expected sequence, window
    ((16384, 8, 16, 128, 2048, *FULL), "one buffer"),
    ((16384, 32, 16, 128, 512, *FULL), "two buffers"),
    ((16384, 16, 16, 128, 1024, *FULL), "two buffers"),
    ((16384, 16, 16, 128, 1025, *FULL), "one buffer"),
    ((16384, 8, 16, 128, 2048, *CAUSAL), "two buffers"),
    ((16384, 8, 16, 128, 2048, *NEAR), "two buffers"),
    ((16384, 32, 16, 128, 512, *CAUSAL), "ordinary"),
    ((16384, 32, 16, 112, 512, *FULL), "one buffer"),
    ((16384, 8, 16, 112, 2048, *NEAR), "one buffer"),
    ((16384, 64, 16, 128, 256, *FULL), "ordinary"),
    ((2048, 1, 12, 128, 2048, *FULL), "ordinary"),
    ((16384, 8, 16, 128, 0, *FULL), "one buffer"),
    ((16384, 32, 16, 128, 0, *FULL), "two buffers"),
]
"""The last two have no expected length, so that the mean counts."""


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
