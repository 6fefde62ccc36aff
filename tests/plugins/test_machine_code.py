# SPDX-License-Identifier: Apache-2.0
"""The comparison of machine code: names do not matter, everything else in a kernel does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from padfree.runtime.gpu import device_code

from tests.support.machine_code import Difference, Kernel, compare, kernels, main

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURE = "sm_90a"
SOURCE = """
__constant__ int table[4] = {1, 2, 3, TABLE};
struct Tag { static constexpr int value = 3; };
template <typename T>
__global__ void __launch_bounds__(BOUND) first(int* values, int count) {
  __shared__ int shared[SHARED];
  shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[127 - threadIdx.x] * T::value + table[count & 3];
}
template <typename T>
__global__ void second(float* values) { values[threadIdx.x] += FACTOR * T::value; }
template __global__ void first<Tag>(int*, int);
template __global__ void second<Tag>(float*);
"""
AS_IT_WAS = {"TABLE": "4", "BOUND": "128", "SHARED": "128", "FACTOR": "2.f"}


def build(nvcc: str, path: Path, **changes: str) -> Path:
    """An object file compiled from SOURCE with some words replaced."""
    text = SOURCE
    for old, new in {**AS_IT_WAS, **changes}.items():
        text = text.replace(old, new)
    path.with_suffix(".cu").write_text(text, encoding="utf-8")
    command = [nvcc, f"-arch={ARCHITECTURE}", "-c", str(path.with_suffix(".cu")), "-o", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def test_names_of_kernels_types_and_files_do_not_matter(nvcc: str, tmp_path: Path) -> None:
    before = build(nvcc, tmp_path / "before.o")
    after = build(nvcc, tmp_path / "somewhere_else.o", first="another", second="and_another", Tag="Label", table="list")
    names = [{kernel.symbol for kernel in kernels(path)} for path in (before, after)]
    assert len(names[0]) == 2
    assert not names[0] & names[1]
    assert compare(kernels(before), kernels(after)) == Difference(2, (), (), ())
    assert main([str(before), str(after)]) == 0


@pytest.mark.parametrize(
    ("change", "changed"),
    [
        ({"FACTOR": "4.f"}, {"second"}),
        ({"BOUND": "256"}, {"first"}),
        ({"SHARED": "256"}, {"first"}),
        ({"TABLE": "5"}, {"first", "second"}),  # data that all kernels in a file may read counts for all of them
    ],
)
def test_everything_else_does(
    nvcc: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, str], changed: set[str]
) -> None:
    before, after = build(nvcc, tmp_path / "before.o"), build(nvcc, tmp_path / "after.o", **change)
    difference = compare(kernels(before), kernels(after))
    assert {name for name in ("first", "second") if any(name in line for line in difference.changed)} == changed
    assert len(difference.changed) == len(changed)
    assert difference.gone == difference.added == ()
    assert main([str(before), str(after)]) == 1
    assert f"{len(changed)} changed" in capsys.readouterr().out


def test_a_folder_is_all_of_its_object_files(nvcc: str, tmp_path: Path) -> None:
    one = build(nvcc, tmp_path / "one.o")
    two = build(nvcc, tmp_path / "two.o", first="third", second="fourth", FACTOR="3.f")
    assert compare(kernels(tmp_path), [*kernels(one), *kernels(two)]) == Difference(4, (), (), ())
    assert main([str(tmp_path), str(one)]) == 1
    assert main(["--part", str(tmp_path), str(one)]) == 0


def test_two_kernels_that_exchange_names_are_the_same() -> None:
    before = [Kernel("sm_80", "a", "1"), Kernel("sm_80", "b", "2")]
    after = [Kernel("sm_80", "a", "2"), Kernel("sm_80", "b", "1")]
    assert compare(before, after) == Difference(2, (), (), ())


def test_architectures_do_not_stand_for_each_other() -> None:
    before, after = [Kernel("sm_80", "a", "1")], [Kernel("sm_90a", "a", "1")]
    assert compare(before, after) == Difference(0, (), ("sm_80 a",), ("sm_90a a",))


def test_of_equal_kernels_each_counts() -> None:
    one, two = Kernel("sm_80", "a", "1"), Kernel("sm_80", "b", "1")
    assert compare([one, two], [one]) == Difference(1, (), ("sm_80 b",), ())


@pytest.mark.usefixtures("tools")
def test_the_library_is_the_same_as_itself(library_path: Path) -> None:
    if not device_code.architectures(library_path):
        pytest.skip(f"{library_path} has no code for a GPU; PADFREE_CUDA_ARCHITECTURES=80 pip install .")
    actual = kernels(library_path)
    assert len(actual) > 100
    assert compare(actual, actual) == Difference(len(actual), (), (), ())


@pytest.mark.usefixtures("tools")
def test_pages_have_the_number_of_hopper_kernels(library_path: Path) -> None:
    if "90a" not in (device_code.architectures(library_path) or ()):
        pytest.skip(f"{library_path} has no code for 90a; PADFREE_CUDA_ARCHITECTURES=90a pip install .")
    count = sum(bool(re.search(r"(linear|resident)Sm90Kernel", kernel.symbol)) for kernel in kernels(library_path))
    for page, words in (
        ("guide/build.md", f"the {count} GEMM kernels for Hopper"),
        ("internals/linear-tiles.md", f"today there are {count}."),
    ):
        assert words in (ROOT / "docs" / page).read_text("utf-8")


@pytest.mark.usefixtures("tools")
def test_files_without_device_code_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no device code; name a library"):
        kernels(tmp_path)
