# SPDX-License-Identifier: Apache-2.0
"""When something breaks in a Batcher, nobody waits for ever, and the process ends as it should."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from padfree.builder.demo.demo import DEMO_DATA
from padfree.onnx_tools import rewrite, save_model
from padfree.runtime.batching import Batcher, BatchingError, Budget, DeadlineError, Decision, FirstCome

from .batcher_model import BREAKS, PATIENCE_S, Model, answer, first_come, held_up

SOON_S = 0.1


@pytest.mark.parametrize("deadline_s", [SOON_S, 1e13])
def test_a_deadline_needs_no_free_thread(model: Model, deadline_s: float) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        running = held_up(model, batcher)
        far = batcher.submit([2], deadline_s=1e12)  # longer than Python can wait
        near = batcher.submit([3], deadline_s=SOON_S)
        with pytest.raises(DeadlineError, match=r"within the 100\.0 ms"):
            near.result(PATIENCE_S)
        assert not running.done(), "the only thread is held up until the gate opens"
        last = batcher.submit([4], deadline_s=deadline_s)
        if deadline_s == SOON_S:
            with pytest.raises(DeadlineError):
                last.result(PATIENCE_S)
        model.gate.set()
        assert answer(far) == [20]
    assert batcher.stats.too_late == 1 + (deadline_s == SOON_S)


def test_a_closed_batcher_waits_for_deadlines_too(model: Model) -> None:
    batcher = Batcher(model, first_come(), runs=1)
    held_up(model, batcher)
    late = batcher.submit([2], deadline_s=0.05)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    with pytest.raises(DeadlineError):
        late.result(PATIENCE_S)
    model.gate.set()
    closing.join(PATIENCE_S)
    assert not closing.is_alive()


def test_a_dead_model_costs_few_calls(model: Model) -> None:
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        futures = [batcher.submit([BREAKS]) for _ in range(256)]
        model.gate.set()
        errors = [future.exception(PATIENCE_S) for future in futures]
        assert len(model.runs) <= 1 + 8 + 2 * 8 + 1  # the run held up, one per size, requests alone
        assert sum(type(error) is RuntimeError for error in errors) == 8
        given_up = [str(error) for error in errors if isinstance(error, BatchingError)]
        assert len(given_up) == 248
        assert "8 requests of its run failed alone, the last one with RuntimeError('the GPU does not" in given_up[0]
        assert answer(batcher.submit([5])) == [50]
    assert batcher.stats.failed == 256


def test_neighbours_that_fail_leave_the_others_alone(model: Model) -> None:
    """Twenty consecutive requests of 256 are bad."""
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        futures = [batcher.submit([BREAKS if 100 <= at < 120 else 5]) for at in range(256)]
        model.gate.set()
        for at, future in enumerate(futures):
            if 100 <= at < 120:
                assert isinstance(future.exception(PATIENCE_S), RuntimeError)
            else:
                assert answer(future) == [50]


@pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()], ids=repr)
def test_what_ends_threads_ends_no_batcher(model: Model, ending: BaseException) -> None:
    run = model.run

    def ends(request: Any) -> Any:
        if any(7 in row for row in request["input_ids"]):
            raise ending
        return run(request)

    model.run = ends  # type: ignore[method-assign]
    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        futures = [batcher.submit([at]) for at in (6, 7, 8)]
        model.gate.set()
        for future in futures:
            with pytest.raises(BatchingError, match=r"the model fails: the run was ended by \w+\("):
                future.result(PATIENCE_S)
        assert answer(batcher.submit([5])) == [50]


def test_a_policy_that_exits_fails_who_waits_and_no_more(model: Model) -> None:
    class Exiting(FirstCome):
        def decide(self, waiting: Any, now_s: float) -> Any:
            if waiting[0].length == 2:
                raise SystemExit("no more")
            return super().decide(waiting, now_s)

    with Batcher(model, Exiting(Budget()), runs=2) as batcher:
        with pytest.raises(BatchingError, match=r"the batching policy failed: SystemExit\('no more'\)"):
            batcher.submit([5, 5]).result(PATIENCE_S)
        assert answer(batcher.submit([4])) == [40]


@pytest.mark.parametrize("wake_s", [float("-inf"), float("nan"), 0.0])
def test_a_policy_that_wakes_in_the_past_is_asked_again(model: Model, wake_s: float) -> None:
    class UndecidedPolicy(FirstCome):
        def decide(self, waiting: Any, now_s: float) -> Decision:
            asked.append(now_s)
            return Decision((), wake_s) if len(asked) < 5 else super().decide(waiting, now_s)

    asked: list[float] = []
    with Batcher(model, UndecidedPolicy(Budget()), runs=1) as batcher:
        assert answer(batcher.submit([4])) == [40]


def test_costs_that_fail_leave_no_caller_waiting(model: Model) -> None:
    class Costless(FirstCome):
        @property
        def costs(self) -> Any:
            if broken:
                raise ZeroDivisionError
            return None

        @costs.setter
        def costs(self, value: Any) -> None:
            pass

    broken = False
    with Batcher(model, Costless(Budget())) as batcher:
        broken = True
        with pytest.raises(ZeroDivisionError):
            batcher.submit([4], caller="one", deadline_s=PATIENCE_S)
        broken = False
        assert answer(batcher.submit([5], caller="one")) == [50]


def test_callers_cannot_end_threads(model: Model) -> None:
    def leave(_: Future[Any]) -> None:
        raise SystemExit

    with Batcher(model, first_come(), runs=1) as batcher:
        held_up(model, batcher)
        futures = [batcher.submit([at], caller="one") for at in (2, 3)]
        futures[0].add_done_callback(leave)
        taken = batcher.submit([4])
        taken.set_result({})
        model.gate.set()
        assert answer(futures[1]) == [30]
        assert answer(batcher.submit([5], caller="one")) == [50]


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("model") / "packed.onnx"
    save_model(rewrite(DEMO_DATA / "bert_tiny.onnx", verify=False).model, file)
    return file


OPEN = """
import os, sys, threading, time
from padfree.runtime import Session
from padfree.runtime.batching import Batcher, ClosedError, FirstCome

session = Session(sys.argv[1])
batcher = Batcher(session, FirstCome(session.budget))
futures = [batcher.submit([5] * length) for length in range(1, 300)]
"""


def ran(program: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", OPEN + program, str(file)], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("after_s", [0.0, 0.01, 0.05])
def test_a_process_ends_with_a_batcher_that_nobody_closed(model_file: Path, after_s: float) -> None:
    """The process ends in the middle of runs; waiting requests fail, so that their callbacks are called."""
    done = ran(
        f"time.sleep({after_s})\n"
        "[future.add_done_callback(lambda f: sys.stdout.write(f'{f.exception()!r}\\n')) for future in futures]",
        model_file,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 299
    assert all(line == "None" or "the process ended before the request ran" in line for line in lines)


def test_other_threads_may_outlive_the_main_one(model_file: Path) -> None:
    program = """
def later():
    time.sleep(0.2)
    print(len(batcher.submit([5, 6]).result(30)["last_hidden_state"]))
threading.Thread(target=later).start()
"""
    done = ran(program, model_file)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_is_told_that_it_has_no_threads(model_file: Path) -> None:
    program = """
child = os.fork()
if not child:
    try:
        batcher.submit([5], caller="one")
    except ClosedError as error:
        print(error, flush=True)
    batcher.close()
    os._exit(7)  # as multiprocessing does: onnxruntime 1.31 hangs in the destructors of a fork
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
batcher.close()
print(all(future.exception() is None for future in futures))
"""
    done = ran(program, model_file)
    assert done.returncode == 0, done.stderr
    first, last = done.stdout.splitlines()
    assert "is a fork of it without its threads; open session and batcher after the fork" in first
    assert last == "True"
