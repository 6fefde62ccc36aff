# SPDX-License-Identifier: Apache-2.0
"""The command for everything that needs a GPU does nothing twice, and leaves out what does not fit into the time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.evidence import sources
from benchmarks.run_on_gpu import Part, counts_of, parts, passed_before, run, run_all, table, visible_gpus

CLOSING = "=== 1 failed, 2 passed, 3 skipped in 4.00s ==="


PATIENCE_S = 60.0  # tests that wait longer have failed
WAITING = f"""
import os, pathlib, time

def wait_until(check):
    end = time.monotonic() + {PATIENCE_S}
    while not check():
        assert time.monotonic() < end
        time.sleep(0.01)

"""
"""What programs of parts begin with that wait for each other, however slowly the machine starts them."""


def part(name: str, code: str, minutes: float = 0, *, whole: bool = False) -> Part:
    return Part(name, (sys.executable, "-c", code), minutes, whole_machine=whole)


def test_a_part_is_recorded_with_its_counts() -> None:
    record = run(part("tests", f"print({CLOSING!r}); raise SystemExit(1)"), None)
    assert record["status"] == 1
    assert {name: record[name] for name in ("step", "failed", "passed", "skipped")} == {
        "step": "tests", "failed": 1, "passed": 2, "skipped": 3,
    }  # fmt: skip
    assert record["summary"].startswith("1 failed, 2 passed")


def test_a_failure_is_recorded_with_its_reasons_each_once() -> None:
    lines = ["E       torch.OutOfMemoryError: none left", "Error: of no test", "========= Program hit an error"]
    code = f"print({chr(10).join(lines * 3)!r}); raise SystemExit"
    assert run(part("tests", f"{code}(9)"), None)["reasons"] == [lines[0], lines[2]]
    assert "reasons" not in run(part("tests", code), None)


def test_counts() -> None:
    assert counts_of("12 passed, 0 failed, 3 left") == {"passed": 12, "failed": 0, "left": 3}
    assert counts_of("2 errors in 3s") == {"error": 2}
    assert counts_of("the matrix of 12 engines") == {}


@pytest.mark.slow
def test_what_passed_with_other_files_or_on_another_gpu_is_not_done(tmp_path: Path) -> None:
    checks, now = tmp_path / "checks.jsonl", sources(("-m", "benchmarks.scale"))
    wanted = [Part(name, ("-m", "benchmarks.scale")) for name in "abcd"]
    assert passed_before(checks, wanted, "H200") == {}
    records: list[dict[str, Any]] = [
        {"step": "a", "status": 0, "commit": "1"},  # an old record without a digest
        {"step": "a", "status": 0, "commit": "2", "sources": "0123456789abcdef", "gpu": "H200"},
        {"step": "b", "status": 1, "commit": "3", "sources": now, "gpu": "H200"},
        {"step": "c", "status": 0, "commit": "4", "sources": now, "gpu": "H200"},
        {"step": "d", "status": 0, "commit": "5", "sources": now, "gpu": "H100"},
        {"step": "e", "status": 0, "commit": "6", "gpu": "H200"},  # a part that no longer exists
    ]
    checks.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert passed_before(checks, wanted, "H200") == {"c": "4"}
    assert passed_before(checks, wanted, None) == {"c": "4", "d": "5"}


@pytest.mark.parametrize("gpus", [["0"], ["0", "1", "2"]])
def test_what_would_take_too_long_is_left(gpus: list[str]) -> None:
    wanted = [part("short", "pass"), part("long", "pass", 5), part("whole", "pass", whole=True)]
    records: list[dict[str, Any]] = []
    left = run_all(wanted, gpus, time.monotonic() + 60, records.append)
    assert [item.name for item in left] == ["long"]
    assert [record["step"] for record in records] == ["whole", "short"]  # parts that need the whole machine come first
    assert "long" in table(records, left).splitlines()[-1]


def test_parts_run_on_gpus_of_their_own(tmp_path: Path) -> None:
    """Each part waits for one on the other GPU, so that both GPUs get equally many."""
    code = f"""
own = os.environ["CUDA_VISIBLE_DEVICES"]
begun = [pathlib.Path({str(tmp_path)!r}) / name for name in "01"]
with begun[int(own)].open("a") as file:
    file.write("x")
mine = begun[int(own)].stat().st_size
wait_until(lambda: all(one.exists() and one.stat().st_size >= mine for one in begun))
print(own)
"""
    records: list[dict[str, Any]] = []
    wanted = [part(str(number), WAITING + code) for number in range(4)]
    run_all(wanted, ["0", "1"], time.monotonic() + PATIENCE_S, records.append)
    assert sorted(record["summary"] for record in records) == ["0", "0", "1", "1"]


def test_no_two_large_parts_share_a_gpu(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, time
mark = pathlib.Path({str(tmp_path)!r}) / os.environ["CUDA_VISIBLE_DEVICES"]
mark.touch(exist_ok=False)
time.sleep(0.2)
mark.unlink()
"""
    large = [Part(f"large {at}", (sys.executable, "-c", code), 0, large=True) for at in range(5)]
    records: list[dict[str, Any]] = []
    small = [part(f"small {at}", "pass") for at in range(5)]
    assert not run_all([*large, *small], ["0", "1"], time.monotonic() + PATIENCE_S, records.append, at_once=3)
    assert [record["status"] for record in records] == [0] * 10
    assert {part.name for part in parts(tmp_path, "default") if part.large} == {
        part.name for part in parts(tmp_path, "default") if part.name.startswith("memcheck")
    }


def test_tests_share_a_gpu_and_what_measures_has_its_own(tmp_path: Path) -> None:
    code = """
(here / f"{name} runs").touch()
wait_until(lambda: len([*here.glob("* runs")]) > others)
time.sleep(0.5 * (not others))  # those that may not be beside it would come now
print(len([*here.glob("* runs")]))
(here / f"{name} has counted").touch()
wait_until(lambda: len([*here.glob("* has counted")]) > others)
(here / f"{name} runs").unlink()
"""
    wanted = []
    for name in "cadb":
        given = f"here, name, others = pathlib.Path({str(tmp_path)!r}), {name!r}, {int(name in 'ab')}"
        wanted.append(Part(name, (sys.executable, "-c", WAITING + given + code), 0, alone=name in "cd"))
    records: list[dict[str, Any]] = []
    run_all(wanted, ["0"], time.monotonic() + PATIENCE_S, records.append, at_once=2)
    assert {record["step"] for record in records[:2]} == {"a", "b"}
    assert [record["summary"] for record in records] == ["2", "2", "1", "1"]


@pytest.mark.parametrize(
    ("closing", "status"), [("1 skipped in 0.98s", 5), ("8 skipped in 1s", 0), ("18 deselected in 1s", 5)]
)
def test_tests_that_are_all_skipped_are_no_failure_and_no_evidence(closing: str, status: int, tmp_path: Path) -> None:
    skipped = part("tests", f"print({closing!r}); raise SystemExit({status})")
    record = run(skipped, None)
    assert (record["status"], record["passed"]) == (0, 0)
    assert "nothing run" in table([record], [])
    checks = tmp_path / "checks.jsonl"
    checks.write_text(json.dumps({**record, "commit": "1"}))
    assert passed_before(checks, [skipped], None) == {}
    checks.write_text(json.dumps({**record, "commit": "1", "passed": 2}))
    assert passed_before(checks, [skipped], None) == {"tests": "1"}


def test_no_test_at_all_is_a_failure() -> None:
    assert run(part("tests", "print('no tests ran in 0.01s'); raise SystemExit(5)"), None)["status"] == 5


def test_a_failure_on_one_of_several_gpus_shows_its_end(capfd: pytest.CaptureFixture[str]) -> None:
    run(part("tests", "print('the reason'); raise SystemExit(1)"), "0")
    assert "the reason" in capfd.readouterr().out
    run(part("tests", "print('all is well')"), "0")
    assert "all is well" not in capfd.readouterr().out


def test_only_visible_gpus_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,3")
    assert visible_gpus() == ["1", "3"]


def test_every_kernel_and_engine_test_has_its_part() -> None:
    root = Path(__file__).resolve().parents[2]
    commands = [" ".join(item.command) for item in parts(Path("results"), "default")]
    files = [*(root / "tests/kernels").glob("test_*.py"), *(root / "tests/gpu").glob("test_*.py")]
    missing = [path.name for path in files if not any(str(path.relative_to(root)) in command for command in commands)]
    assert missing == []
    for name in ("test_attention", "test_linear"):
        assert sum(f"{name}.py" in command and "compute-sanitizer" in command for command in commands) == 1
