# SPDX-License-Identifier: Apache-2.0
"""Which GPUs run which code, by NVIDIA's rules: later GPUs of the same first number, and for "a" only its own."""

from __future__ import annotations

import pytest
from padfree.contract.architectures import ALL, architecture_for, code_problem, install_command, serves

RUNS = {
    "80": ["8.0", "8.6", "8.7", "8.9"],
    "86": ["8.6", "8.7", "8.9"],
    "89": ["8.9"],
    "90": ["9.0"],
    "90a": ["9.0"],
    "100": ["10.0", "10.3"],
    "100a": ["10.0"],
    "100f": ["10.0", "10.3"],
    "120": ["12.0", "12.1"],
    "120a": ["12.0"],
}
GPUS = ["7.5", "8.0", "8.6", "8.7", "8.9", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1"]


@pytest.mark.parametrize("architecture", RUNS)
def test_code_runs_on_later_gpus_of_its_first_number(architecture: str) -> None:
    assert [gpu for gpu in GPUS if serves(architecture, gpu)] == RUNS[architecture]


def test_all_is_code_for_every_gpu_that_padfree_supports() -> None:
    served = [gpu for gpu in GPUS if any(serves(architecture, gpu) for architecture in ALL)]
    assert served == [gpu for gpu in GPUS if architecture_for(gpu) is not None]
    assert served == [gpu for gpu in GPUS if gpu not in ("7.5", "11.0")]


def test_what_is_not_an_architecture_serves_nothing() -> None:
    assert not serves("sm_90", "9.0")
    assert not serves("", "8.0")


def test_the_problem_names_gpu_need_and_library() -> None:
    assert code_problem("NVIDIA L4", "8.9", ("80", "90a")) == ""
    assert code_problem("NVIDIA L4", "8.9", ("90a", "100")) == (
        "NVIDIA L4 (compute capability 8.9) needs code for 80, this library has code for 90a, 100 alone"
    )
    assert code_problem("NVIDIA H100", "9.0", ()) == (
        "NVIDIA H100 (compute capability 9.0) needs code for 90a, this library has no device code"
    )
    refused = code_problem("Tesla T4", "7.5", ALL)
    assert refused.startswith("Tesla T4 (compute capability 7.5) is no GPU that padfree has kernels for")


def test_the_command_keeps_what_the_library_has() -> None:
    assert install_command("9.0", ()) == "PADFREE_CUDA_ARCHITECTURES=90a pip install ."
    assert install_command("9.0", ("80",)) == "PADFREE_CUDA_ARCHITECTURES='80;90a' pip install ."


@pytest.mark.parametrize("wrong", ["9", "sm_90", "", "9.0.1"])
def test_a_compute_capability_has_two_numbers(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: two numbers such as 8\.9"):
        architecture_for(wrong)
