# SPDX-License-Identifier: Apache-2.0
"""Serving with several devices, here sessions on the CPU: answers, a device that fails, and how many are left."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder import cli
from padfree.runtime import Session, SessionError
from padfree.runtime.pool import DevicePool
from padfree.runtime.text.tasks import Choices, describe
from padfree.serving import wire
from padfree.serving.engine import Engine, Inbox
from padfree.serving.metrics import WIDTH, ProcessCounters
from padfree.serving.options import Limits

from tests.support.folders import TOKENIZER
from tests.support.served_models import table, write_model

PATIENCE_S = 20.0


def test_groups_go_to_all_devices_and_a_failing_one_is_counted_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_model(tmp_path / "model.onnx")
    sessions = {name: Session(file) for name in ("one", "two")}
    row = ProcessCounters(np.zeros(WIDTH), 0)
    sent: queue.Queue[bytes] = queue.Queue()
    with DevicePool(sessions) as pool:
        served = describe(file, pool.metadata, Choices(tokenizer=TOKENIZER))
        engine = Engine(pool, served, Limits(), pool.runs, row)
        assert row.read("padfree_devices") == 2

        def ask(ids: list[int]) -> list[float]:
            lengths = np.array([len(ids)], np.int32)
            columns = [np.array(ids, np.int32), np.zeros(len(ids), np.int32)]
            (frame,) = wire.Frames().feed(wire.pack_infer(1, wire.Infer(lengths, columns, 60.0)))
            Inbox(engine, served.inputs, sent.put).infer(frame)
            (answer,) = wire.Frames().feed(sent.get(timeout=PATIENCE_S))
            assert answer.kind == wire.ROWS, bytes(answer.payload)
            found: list[float] = wire.unpack_rows(answer.payload).values[0].tolist()
            return found

        def expected_rows(ids: list[int]) -> list[float]:
            return table(8)[ids].sum(0).tolist()

        for ids in ([3, 4], [5], [6, 7, 8]):
            assert ask(ids) == pytest.approx(expected_rows(ids), rel=1e-5)
        assert [one.runs > 0 for one in pool.stats.values()] == [True, True]

        def fail(*_: Any, **__: Any) -> Any:
            raise SessionError("CUDA failed with cudaErrorIllegalAddress")

        monkeypatch.setattr(sessions["one"].backend, "run", fail)
        for ids in ([3, 4], [5], [6, 7, 8]):
            assert ask(ids) == pytest.approx(expected_rows(ids), rel=1e-5)
        assert row.read("padfree_devices") == 1
        assert list(pool.failures) == ["one"]
        engine.close()


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("0,0", "GPUs are '0,0', allowed: all, or different numbers by commas; pass --gpus 0,1"),
        ("0,1", "--gpus 0,1: is for plans"),
        ("all", "runs on the CPU; leave it out, or build a plan with padfree build"),
    ],
)
def test_gpus_that_cannot_be_had_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], gpus: str, message: str
) -> None:
    file = write_model(tmp_path / "model.onnx")
    assert cli.main(["serve", str(file), "--tokenizer", str(TOKENIZER), "--gpus", gpus]) != 0
    assert message in " ".join(capsys.readouterr().err.split())
