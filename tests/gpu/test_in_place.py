# SPDX-License-Identifier: Apache-2.0
"""Arrays on the GPU that graphs read in place, and the streams that write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from padfree.runtime import Session
from padfree.runtime.arrays.device_arrays import LEGACY_STREAM

from .test_session import TOLERANCE, Interface, packed_of

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

IN_PLACE_COMES = 64  # how often a context sees the same addresses before it has a graph for them
BUSY_RUNS = IN_PLACE_COMES + 20  # runs that begin before their values are written
MOST_RUNS = 10 * BUSY_RUNS


def test_arrays_that_come_back_are_read_where_they_are(session: Session, plain: Session) -> None:
    """Values of arrays change between runs, a graph reads them in place, and nothing waits: all is on one stream."""
    torch = pytest.importorskip("torch")
    given = [packed_of([100, 28], seed) for seed in range(3)]
    expected = [plain.run_packed(arrays, lens)["last_hidden_state"] for arrays, lens in given]
    sources = [{name: torch.from_numpy(values).cuda() for name, values in arrays.items()} for arrays, _ in given]
    inputs = {name: torch.empty_like(values) for name, values in sources[0].items()}
    lens = torch.from_numpy(given[0][1]).cuda()
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    made = []
    for at in range(2 * IN_PLACE_COMES + 20):
        with torch.cuda.stream(stream):
            for name, values in inputs.items():
                values.copy_(sources[at % 3][name])
            results = session.run_packed(inputs, lens, outputs="device", stream=stream)
            made.append(torch.from_dlpack(results["last_hidden_state"]).clone())
            del results
    stream.synchronize()
    for at, values in enumerate(made):
        np.testing.assert_allclose(values.float().cpu().numpy(), expected[at % 3], atol=TOLERANCE)
    backend: Any = session.backend
    assert any(len(lane._graph_runs._in_place) for lane in backend._lanes.values())
    for name, values in inputs.items():
        values.copy_(sources[1][name])
    for _ in range(3):  # on the default stream, results on the host
        np.testing.assert_allclose(session.run_packed(inputs, lens)["last_hidden_state"], expected[1], atol=TOLERANCE)
    for at in range(3):  # other arrays, at other addresses
        results = session.run_packed(sources[at], lens)["last_hidden_state"]
        np.testing.assert_allclose(results, expected[at], atol=TOLERANCE)


def test_values_that_a_blocking_stream_makes(session: Session, plain: Session) -> None:
    """Arrays without a stream are ready in the order of the legacy default stream, which waits for blocking streams.

    If other work delays the host, the GPU may be done already, which proves nothing: such runs do not count.
    """
    torch = pytest.importorskip("torch")
    from padfree.runtime.gpu.cuda import check as checked
    from padfree.runtime.gpu.cuda import is_idle, runtime

    arrays, lens = packed_of([100, 28])
    expected = plain.run_packed(arrays, lens)["last_hidden_state"]
    source = torch.from_numpy(arrays["input_ids"]).cuda()
    ids, weights = torch.zeros_like(source), torch.randn(4096, 4096, device="cuda")
    types, given_lens = (Interface(torch.from_numpy(values).cuda()) for values in (arrays["token_type_ids"], lens))
    made_on = checked(runtime.cudaStreamCreate())
    blocking = torch.cuda.ExternalStream(int(made_on))
    runs = busy_runs = 0
    while busy_runs < BUSY_RUNS and runs < MOST_RUNS:
        ids.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(blocking):
            busy = weights
            for _ in range(4):
                busy = busy @ weights * 0.01
            ids += source
        runs += 1
        busy_runs += not is_idle(LEGACY_STREAM)
        results = session.run_packed({"input_ids": Interface(ids), "token_type_ids": types}, given_lens)
        np.testing.assert_allclose(results["last_hidden_state"], expected, atol=TOLERANCE)
    assert busy_runs == BUSY_RUNS
    torch.cuda.synchronize()
    assert is_idle(LEGACY_STREAM)
    checked(runtime.cudaStreamDestroy(made_on))


def test_parts_of_arrays_begin_anywhere(session: Session, plain: Session) -> None:
    """TensorRT only reads inputs at addresses that are multiples of 256 bytes."""
    torch = pytest.importorskip("torch")
    arrays, lens = packed_of([40, 24])
    expected = plain.run_packed(arrays, lens)["last_hidden_state"]
    longer = {name: torch.from_numpy(np.concatenate([[7], values]).astype(np.int32)) for name, values in arrays.items()}
    tensors = {name: values.cuda()[1:] for name, values in longer.items()}
    for one in (session, plain):
        for _ in range(3):
            results = one.run_packed(tensors, lens)["last_hidden_state"]
            np.testing.assert_allclose(results, expected, atol=TOLERANCE)
