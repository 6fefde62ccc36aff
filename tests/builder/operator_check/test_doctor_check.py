# SPDX-License-Identifier: Apache-2.0
"""The command around a check: its processes, its table, its JSON and its exit codes, without a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from padfree.builder import BuildError, doctor, gpu_files
from padfree.builder.cli import main
from padfree.builder.doctor import Finding, FindingState
from padfree.builder.engine import build
from padfree.builder.operator_check import worker
from padfree.builder.operator_check.checking import CaseResult
from padfree.builder.operator_check.worker import MARK, check_all

Capture = pytest.CaptureFixture[str]

GPU = {"name": "NVIDIA L4", "major": 8, "minor": 9, "multiprocessors": 60, "clock_mhz": 2040.0, "copy_gb_s": 250.0}
RIGHT = CaseResult("PadfreePool", "first", "fp16", "right", 1e-4, 5e-3, 3.0, 1.5, "bytes")
WRONG = CaseResult("PadfreePool", "last", "fp16", "wrong", None, 5e-3, 3.0, 1.5, "bytes", "3 numbers are infinite")
ABSENT = CaseResult("PadfreeLinearFp8", "plain", "fp8", "not here", detail="needs 8.9")


def use_process(monkeypatch: pytest.MonkeyPatch, code: str, count: int = 3) -> None:
    """Makes the process run this script, and reduces the cases to `count`."""
    cases = worker.all_cases()[:count]
    monkeypatch.setattr(worker, "all_cases", lambda: cases)
    tell = f"import json, os, sys\ndef tell(**what): print({MARK!r} + json.dumps(what), flush=True)\n"
    result = "def done(number): tell(begins=number); tell(result=dict(operator=str(number), variant='v', kind='fp16', "
    result += "state='right', relative=0.0, allowed=1.0, time_us=1.0, floor_us=1.0, floor_by='bytes', detail=''))\n"
    monkeypatch.setattr(worker, "_CODE", tell + result + "asked = json.loads(sys.argv[1])\n" + code)


def test_results_come_as_the_process_tells_them(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "print('a library says hello')\ntell(gpu={'name': 'here'}, tensorrt='10.6.0')\n"
    use_process(monkeypatch, code + "for number in asked['cases']: done(number)")
    reports: dict[str, Any] = {}
    assert [result.operator for result in check_all(0, reports)] == ["0", "1", "2"]
    assert reports == {"gpu": {"name": "here"}, "tensorrt": "10.6.0"}


def test_another_process_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
for number in asked['cases']:
    if number == 1:
        tell(begins=1)
        sys.stderr.write("Traceback\\nillegal memory access\\n")
        sys.stderr.flush()
        os.kill(os.getpid(), 11)
    done(number)
"""
    use_process(monkeypatch, code)
    results = list(check_all(0, {}))
    assert [result.state for result in results] == ["right", "failed", "right"]
    assert results[1].operator == worker.all_cases()[1].operator
    assert results[1].detail == "the process ended: illegal memory access"
    assert results[2].operator == "2"


def test_a_failed_run_ends_its_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose CUDA may be broken reports its result and ends; another one runs the other cases."""
    use_process(monkeypatch, "done(asked['cases'][0]); sys.exit(1)")
    assert [result.operator for result in check_all(0, {})] == ["0", "1", "2"]


@pytest.mark.slow
def test_a_kernel_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    code = "import time\nfor number in asked['cases']:\n    tell(begins=number) if number == 2 else done(number)\n"
    use_process(monkeypatch, code + "    time.sleep(60 * (number == 2))")
    said = check_all(0, {})
    results = [next(said), next(said)]
    monkeypatch.setattr(worker, "MOST_SECONDS", 3.0)  # not before: a busy machine takes long to start a process
    results += said
    assert [result.state for result in results] == ["right", "right", "failed"]
    assert "exit code -9" in results[2].detail


def test_a_process_that_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    use_process(monkeypatch, "sys.exit('no memory left')")
    with pytest.raises(BuildError, match="cannot be checked here: no memory left; run `padfree doctor`"):
        list(check_all(0, {}))


def use_results(monkeypatch: pytest.MonkeyPatch, *results: CaseResult) -> None:
    def report(_device: int, facts: dict[str, Any]) -> list[CaseResult]:
        facts.update(gpu=GPU, tensorrt="10.6.0")
        return list(results)

    monkeypatch.setattr(build, "check_machine", lambda *_, **__: None)
    monkeypatch.setattr(worker, "check_all", report)


def test_the_table(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use_results(monkeypatch, RIGHT, ABSENT)
    assert main(["doctor", "--check"]) == 0
    said = capsys.readouterr().out
    assert "operators on NVIDIA L4, TensorRT 10.6.0; a copy moves 250 GB/s" in said
    assert "1.0e-04" in said
    assert "2 checks: 1 right, 1 not here; for a report: padfree doctor --check --json > gpu.json" in said
    assert "PadfreeLinearFp8, plain, fp8: needs 8.9" in said


@pytest.mark.parametrize("bad", [WRONG, CaseResult("PadfreePool", "last", "fp16", "failed", detail="no kernel")])
def test_anything_wrong_is_exit_code_1(monkeypatch: pytest.MonkeyPatch, capsys: Capture, bad: CaseResult) -> None:
    use_results(monkeypatch, RIGHT, bad)
    assert main(["doctor", "--check"]) == 1
    assert f"PadfreePool, last, fp16: {bad.detail}" in capsys.readouterr().out


def test_nothing_checked_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    use_results(monkeypatch, ABSENT)
    assert main(["doctor", "--check"]) == 1


def test_json_for_a_report(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    use_results(monkeypatch, RIGHT, WRONG)
    assert main(["doctor", "--check", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["gpu"] == GPU
    assert report["counts"] == {"right": 1, "wrong": 1}
    assert report["cases"][0]["floor_by"] == "bytes"
    assert report["cases"][1]["detail"] == "3 numbers are infinite"
    assert set(report["library"]) == {"architectures", "cuda_version"}


def test_a_gpu_without_e4m3_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def machine(device: int, *, operators: Any) -> None:
        assert device == 2
        assert "PadfreeAttention" in operators
        assert "PadfreeLinearFp8" not in operators, "for which an A100 would be refused"

    use_results(monkeypatch, RIGHT, ABSENT)
    monkeypatch.setattr(build, "check_machine", machine)
    assert main(["doctor", "--check", "--device", "2"]) == 0


@pytest.mark.parametrize("state", ["ok", "missing"])
def test_doctor_names_the_check_where_it_can_be_made(
    monkeypatch: pytest.MonkeyPatch, capsys: Capture, state: FindingState
) -> None:
    names = ("python", "driver", "tensorrt", "library", "registration", "compiler", "nvcc", "headers")
    findings = [*(Finding(name, "ok", "") for name in names), Finding("gpu", state, "")]
    monkeypatch.setattr(doctor, "diagnose", lambda: findings)
    assert main(["doctor"]) == 0
    assert ("padfree doctor --check" in capsys.readouterr().out) == (state == "ok")


def test_without_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise BuildError("engines cannot be built here: no TensorRT")

    monkeypatch.setattr(build, "check_machine", refuse)
    for files, message in (((tmp_path,), "no TensorRT"), ((), "runs operators on a GPU, and this machine shows no")):
        monkeypatch.setattr(gpu_files, "DEVICE_FILES", files)
        assert main(["doctor", "--check"]) == 1
        error = capsys.readouterr().err
        assert message in error
        assert "padfree optimize" not in error, "which would not check an operator"
    assert main(["doctor", "--check", "--require", "gpu"]) == 1
    assert "leave it out" in capsys.readouterr().err


def test_the_process_is_this_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU or TensorRT it says why it cannot begin; nothing is imported from the current folder."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(BuildError) as caught:
        next(check_all(0, {}))
    assert "planted" not in str(caught.value)
    assert "SessionError" in str(caught.value)
