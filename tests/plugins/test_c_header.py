# SPDX-License-Identifier: Apache-2.0
"""include/padfree.h in C99 and C++: the entry points of the library, and what they refuse on the host."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from padfree.runtime.c_api import AttentionArgs, Operand, ScheduleArgs, open_library
from padfree.runtime.gpu import device_code

from tests.support.c_api import Status, attention_args, schedule_args

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "padfree.h"
SOMEWHERE = 1 << 20
"""An address that no call gets far enough to read."""

USE = """
#include <padfree.h>
#include <stdio.h>
int main(void) {
  padfree_attention_args attention = {0};
  padfree_schedule_args schedule = {0};
  attention.struct_size = sizeof attention;
  schedule.struct_size = sizeof schedule;
  int32_t (*attend)(const padfree_attention_args*, void*) = padfree_attention;
  int32_t (*plan)(const padfree_schedule_args*, void*) = padfree_schedule;
  printf("%d %d %d ", (int)padfree_api_version(), (int)attend(&attention, NULL), (int)plan(&schedule, NULL));
  printf("%s %ld %ld\\n", padfree_last_error(), (long)sizeof attention, (long)sizeof schedule);
  return padfree_version()[0] == 0 || padfree_status_string(PADFREE_OK)[0] == 0;
}
"""


@pytest.fixture(scope="module")
def c_library(library_path: Path) -> ctypes.CDLL:
    return open_library(library_path)


def compiler(name: str) -> str:
    actual = shutil.which(name)
    if actual is None:
        pytest.skip(f"needs {name}")
    return actual


@pytest.mark.parametrize(("name", "language"), [("cc", "c99"), ("c++", "c++11"), ("c++", "c++20")])
def test_the_header_compiles_without_a_warning(name: str, language: str, tmp_path: Path) -> None:
    source = tmp_path / ("use.c" if name == "cc" else "use.cpp")
    source.write_text(USE if name == "cc" else USE.replace("= {0}", "= {}"), encoding="utf-8")
    flags = [f"-std={language}", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", f"-I{HEADER.parent}"]
    done = subprocess.run(
        [compiler(name), *flags, "-c", str(source), "-o", str(tmp_path / "use.o")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_a_program_in_c_calls_the_library(library_path: Path, tmp_path: Path) -> None:
    source, program = tmp_path / "use.c", tmp_path / "use"
    source.write_text(USE, encoding="utf-8")
    link = [str(library_path), f"-Wl,-rpath,{library_path.parent}"]
    subprocess.run(
        [compiler("cc"), "-std=c99", f"-I{HEADER.parent}", str(source), "-o", str(program), *link], check=True
    )
    words = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split()
    assert words[:3] == ["1", str(Status.INVALID_ARGUMENT.value), str(Status.INVALID_ARGUMENT.value)]
    assert words[-2:] == [str(ctypes.sizeof(AttentionArgs)), str(ctypes.sizeof(ScheduleArgs))]


def test_the_version_script_lists_the_functions_of_the_header() -> None:
    declared = set(
        re.findall(r"^(?:int32_t|int64_t|const char\*) (padfree_\w+)\(", HEADER.read_text("utf-8"), re.MULTILINE)
    )
    script = set(re.findall(r"\b(padfree_\w+);", (ROOT / "cmake/exports.map").read_text("utf-8")))
    assert len(declared) == 10
    assert script == declared


def test_versions_and_words(c_library: ctypes.CDLL) -> None:
    stated = re.search(r"#define PADFREE_API_VERSION (\d+)", HEADER.read_text("utf-8"))
    project = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert stated is not None
    assert project is not None
    assert c_library.padfree_api_version() == int(stated.group(1))
    assert c_library.padfree_version().decode() == project.group(1)
    c_library.padfree_architectures.restype = ctypes.c_char_p
    message = c_library.padfree_architectures().decode()
    assert tuple(message.split(",") if message else ()) == device_code.architectures(Path(c_library._name))
    texts = [c_library.padfree_status_string(status.value) for status in Status]
    assert len(set(texts)) == len(texts)
    assert c_library.padfree_status_string(-5) == b"no status of padfree"


def wrong(change: Callable[[Any], object], status: Status, words: str) -> Any:
    return pytest.param(change, status, words, id=words)


def put(name: str, value: Any) -> Callable[[Any], object]:
    return lambda args: setattr(args, name, value)


def put_inside(operand: str, name: str, value: Any) -> Callable[[Any], object]:
    return lambda args: setattr(getattr(args, operand), name, value)


INVALID, MISALIGNED = Status.INVALID_ARGUMENT, Status.MISALIGNED


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        wrong(put("struct_size", 8), INVALID, "struct_size is 8"),
        wrong(put("type", 3), INVALID, "type is 3"),
        wrong(put("num_heads", 0), INVALID, "num_heads is 0"),
        wrong(put("num_heads", 4097), INVALID, "num_heads is 4097"),
        wrong(put("num_kv_heads", 5), INVALID, "num_kv_heads is 5"),
        wrong(put("head_size", 20), INVALID, "head_size is 20"),
        wrong(put("head_size", 264), INVALID, "head_size is 264"),
        wrong(put("num_tokens", -1), INVALID, "num_tokens is -1"),
        wrong(put("num_sequences", -1), INVALID, "num_sequences is -1"),
        wrong(put("num_sequences", 2**31 - 1), INVALID, "fewer for so many heads"),
        wrong(put("max_seq_len", -1), INVALID, "max_seq_len is -1"),
        wrong(put("scale", 0.0), INVALID, "scale is 0"),
        wrong(put("scale", float("nan")), INVALID, "scale is nan"),
        wrong(put("scale", float("inf")), INVALID, "scale is inf"),
        wrong(put("window_left", -2), INVALID, "window_left is -2"),
        wrong(put("window_right", -2), INVALID, "window_right is -2"),
        wrong(put("bias", 4), INVALID, "bias is 4"),
        wrong(put("bias", 1), INVALID, "slopes is NULL"),
        wrong(put("bias", 2), INVALID, "distance_bias is NULL"),
        wrong(put("bias_range", -1), INVALID, "bias_range is -1"),
        wrong(put_inside("q", "data", None), INVALID, "q is NULL"),
        wrong(put_inside("k", "data", None), INVALID, "k is NULL"),
        wrong(put_inside("v", "data", None), INVALID, "v is NULL"),
        wrong(put("cu_seqlens", None), INVALID, "cu_seqlens is NULL"),
        wrong(put("y", None), INVALID, "y is NULL"),
        wrong(put_inside("q", "head_stride", 0), INVALID, "q has a stride of 0"),
        wrong(put_inside("v", "token_stride", -768), INVALID, "v has a stride of -768"),
        wrong(put_inside("k", "token_stride", 2**40), INVALID, "allowed: head_size = 64 to 2^36"),
        wrong(put_inside("k", "token_stride", 772), MISALIGNED, "k has a stride of 772"),
        wrong(put_inside("q", "data", SOMEWHERE + 8), MISALIGNED, "q does not lie"),
        wrong(put_inside("k", "bias", SOMEWHERE + 2), MISALIGNED, "k does not lie"),
        wrong(put("y", SOMEWHERE + 4), MISALIGNED, "y does not lie"),
        wrong(put("tasks", SOMEWHERE), INVALID, "tasks_bytes is 0"),
    ],
)
def test_attention_refuses(c_library: ctypes.CDLL, change: Callable[[Any], object], status: Status, words: str) -> None:
    operands = [Operand(SOMEWHERE, None, 768, 64) for _ in range(3)]
    args = attention_args(*operands, heads=12, head_size=64, tokens=100, sequences=4)
    args.cu_seqlens = args.y = SOMEWHERE
    if words.startswith("bias_range"):
        args.bias, args.distance_bias = 2, SOMEWHERE
    change(args)
    assert c_library.padfree_attention(ctypes.byref(args), None) == status
    message = c_library.padfree_last_error().decode()
    assert message.startswith("padfree_attention: ")
    assert words in message


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_kv_heads": 6}, "num_kv_heads is 6"),
        ({"head_size": 136}, "head_size is 136"),
        ({"window_left": 4}, "the window is (4, -1)"),
        ({"bias_range": 65537}, "bias_range is 65537"),
    ],
)
def test_disentangled_attention_refuses(c_library: ctypes.CDLL, values: dict[str, int], words: str) -> None:
    operands = [Operand(SOMEWHERE, None, 12 * 136, 136) for _ in range(3)]
    args = attention_args(*operands, heads=12, head_size=64, tokens=100, sequences=4)
    args.cu_seqlens = args.y = SOMEWHERE
    args.bias = 3
    for name, value in values.items():
        setattr(args, name, value)
    assert c_library.padfree_attention(ctypes.byref(args), None) == Status.INVALID_ARGUMENT
    assert words in c_library.padfree_last_error().decode()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"struct_size": 0}, "struct_size is 0"),
        ({"num_tokens": -3}, "num_tokens is -3"),
        ({"num_sequences": -3}, "num_sequences is -3"),
        ({"seq_lens": None}, "seq_lens is NULL"),
        ({"cu_seqlens": None}, "cu_seqlens is NULL"),
        ({"token_index": SOMEWHERE, "max_seq_len": 0}, "max_seq_len is 0"),
        ({"token_index": SOMEWHERE, "max_seq_len": 2**30}, "max_seq_len is 1073741824"),
        ({"tasks": SOMEWHERE, "num_heads": 0}, "num_heads is 0"),
        ({"tasks": SOMEWHERE, "num_heads": 12, "tasks_bytes": 16}, "tasks_bytes is 16"),
    ],
)
def test_the_schedule_refuses(c_library: ctypes.CDLL, values: dict[str, Any], words: str) -> None:
    args = schedule_args(tokens=100, sequences=4)
    args.seq_lens = args.cu_seqlens = SOMEWHERE
    for name, value in values.items():
        setattr(args, name, value)
    assert c_library.padfree_schedule(ctypes.byref(args), None) == Status.INVALID_ARGUMENT
    assert words in c_library.padfree_last_error().decode()


@pytest.mark.parametrize(("function", "rows"), [("padfree_pack", "x"), ("padfree_unpack", "packed")])
@pytest.mark.parametrize(
    ("values", "status", "words"),
    [
        ((None, 16, 16, 4, 8, 16), INVALID, "{rows} is NULL; pass memory of the device"),
        ((16, None, 16, 4, 8, 16), INVALID, "token_index is NULL"),
        ((16, 16, None, 4, 8, 16), INVALID, "y is NULL"),
        ((16, 16, 16, -4, 8, 16), INVALID, "num_tokens is -4"),
        ((16, 16, 16, 4, -8, 16), INVALID, "num_slots is -8"),
        ((16, 16, 16, 4, 8, 3), INVALID, "row_bytes is 3"),
        ((16, 16, 16, 4, 8, 0), INVALID, "row_bytes is 0"),
        ((16, 16, 24, 4, 8, 16), MISALIGNED, "y does not lie"),
        ((24, 16, 16, 4, 8, 16), MISALIGNED, "{rows} does not lie at a multiple of 16 bytes"),
    ],
)
def test_packing_refuses(
    c_library: ctypes.CDLL, function: str, rows: str, values: tuple[int | None, ...], status: Status, words: str
) -> None:
    assert getattr(c_library, function)(*values, None) == status
    assert words.format(rows=rows) in c_library.padfree_last_error().decode()


def test_null_arguments_and_sizes_of_task_lists(c_library: ctypes.CDLL) -> None:
    for function in (c_library.padfree_attention, c_library.padfree_schedule):
        assert function(None, None) == Status.INVALID_ARGUMENT
    assert c_library.padfree_task_list_bytes(4096, 32, 12) == 16 * (514 + (4096 // 192 + 32) * 12 + 4096 // 64)
    for sizes in ((-1, 1, 1), (1, -1, 1), (1, 1, 0), (1, 1, 4097), (2**31 - 1, 2**31 - 1, 4096)):
        assert c_library.padfree_task_list_bytes(*sizes) == -1
