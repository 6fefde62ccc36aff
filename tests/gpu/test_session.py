# SPDX-License-Identifier: Apache-2.0
"""Session on a GPU: CUDA graphs, threads, arrays of other libraries, memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from padfree.builder import build_engine
from padfree.builder.demo.demo import DEMO_DATA
from padfree.runtime import Session, SessionError
from padfree.runtime.gpu.graph_cache import IDLE_RUNS_A_GRAPH
from padfree.runtime.request import read_request

from .conftest import MAX_BATCH, MAX_SEQ_LEN

pytestmark = [pytest.mark.gpu, pytest.mark.needs_tensorrt]

Array = npt.NDArray[Any]

VOCABULARY = 930
# fp16 through two layers, outputs of magnitude 1. A graph's filler may select another kernel, which rounds differently.
TOLERANCE = 1e-2


def request_of(lengths: list[int], seed: int = 0) -> dict[str, list[Array]]:
    rng = np.random.default_rng(seed)
    return {
        "input_ids": [rng.integers(0, VOCABULARY, length) for length in lengths],
        "token_type_ids": [rng.integers(0, 2, length) for length in lengths],
    }


def packed_of(lengths: list[int], seed: int = 0) -> tuple[dict[str, Array], Array]:
    """The same request as packed int32 arrays."""
    request = request_of(lengths, seed)
    arrays = {name: np.concatenate(rows).astype(np.int32) for name, rows in request.items()}
    return arrays, np.array(lengths, dtype=np.int32)


def check(results: dict[str, list[Any]], expected: dict[str, list[Any]]) -> None:
    for name, rows in expected.items():
        assert len(rows) == len(results[name])
        for row, wanted in zip(results[name], rows, strict=True):
            np.testing.assert_allclose(row, wanted, atol=TOLERANCE)


def random_lengths(rng: np.random.Generator) -> list[int]:
    lengths = rng.integers(0, MAX_SEQ_LEN + 1, rng.integers(1, MAX_BATCH + 1)).tolist()
    lengths[0] = max(1, lengths[0])
    return lengths


def test_graphs_give_the_plain_answers(session: Session, plain: Session) -> None:
    for lengths in ([128] * 16, [1], [5, 0, 31, 0], [100, 27, 64], [3, 3, 3]):
        for seed in range(4):
            request = request_of(lengths, seed)
            check(session.run(request), plain.run(request))


def test_a_ragged_stream_in_graphs(session: Session, plain: Session) -> None:
    rng = np.random.default_rng(7)
    batches = [request_of(random_lengths(rng), seed) for seed in range(12)]
    for _ in range(4):
        for request in batches:
            check(session.run(request), plain.run(request))


def test_few_graphs_are_made_and_dropped_all_the_time(plan: Path, plain: Session) -> None:
    with Session(plan, max_graphs=2, contexts=1) as session:
        for seed in range(3):
            for lengths in ([10], [20, 3], [64] * 5, [10]):
                request = request_of(lengths, seed)
                expected = plain.run(request)
                for _ in range(2 * IDLE_RUNS_A_GRAPH + 3):  # by then a graph of other sizes is idle, and is dropped
                    check(session.run(request), expected)


def test_threads_share_a_session(session: Session, plain: Session) -> None:
    rng = np.random.default_rng(3)
    batches = [request_of(random_lengths(rng), seed) for seed in range(10)]
    expected = [plain.run(request) for request in batches]

    def work(start: int) -> None:
        for at in range(60):
            which = (start + at) % len(batches)
            check(session.run(batches[which]), expected[which])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_two_contexts_at_once(session: Session, plain: Session) -> None:
    """Two threads meet before every run, so that two runs are under way."""
    meeting = threading.Barrier(2, timeout=30)
    requests = [request_of([128] * 16, 1), request_of([17, 90, 3], 2)]
    expected = [plain.run(request) for request in requests]

    def work(which: int) -> None:
        for _ in range(40):
            meeting.wait()
            check(session.run(requests[which]), expected[which])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))


def test_two_models_share_memory(plan: Path, plain: Session) -> None:
    small, largest = request_of([40, 9]), request_of([MAX_SEQ_LEN] * MAX_BATCH)
    expected = plain.run(small), plain.run(largest)
    with Session(plan) as first, Session(plan) as second:
        memory: Any = first.backend
        for _ in range(3):
            check(first.run(largest), expected[1])
        held = memory.block_bytes
        for _ in range(5):
            check(first.run(small), expected[0])
            check(second.run(largest), expected[1])
        assert memory.block_bytes == held, "the second model runs in the first one's memory"


def test_a_block_holds_what_runs_need(plan: Path) -> None:
    """The block grows from what a small first run needs; the profile's largest run still fits."""
    with Session(plan, contexts=1) as session:
        backend: Any = session.backend
        session.run(request_of([16]))
        small = backend.block_bytes
        session.run(request_of([MAX_SEQ_LEN] * MAX_BATCH))
        assert small <= backend.block_bytes


@pytest.mark.parametrize("graphs", [True, False])
def test_torch_tensors_in_and_out(plan: Path, plain: Session, graphs: bool) -> None:
    torch = pytest.importorskip("torch")
    with Session(plan, cuda_graphs=graphs) as session:
        for seed in range(4):
            arrays, lens = packed_of([40, 0, 9, 77], seed)
            expected = plain.run_packed(arrays, lens)
            tensors = {name: torch.from_numpy(values).cuda() for name, values in arrays.items()}
            for given_lens in (lens, torch.from_numpy(lens).cuda()):
                results = session.run_packed(tensors, given_lens, outputs="device")
                for name, wanted in expected.items():
                    for made in (torch.from_dlpack(results[name]), torch.as_tensor(results[name], device="cuda")):
                        assert made.is_cuda
                        np.testing.assert_allclose(made.cpu().numpy(), wanted, atol=TOLERANCE)
                    np.testing.assert_allclose(results[name].to_host(), wanted, atol=TOLERANCE)
                    assert torch.from_dlpack(results[name]).data_ptr() == torch.as_tensor(results[name]).data_ptr()


def test_runs_of_one_request_overlap(plan: Path, plain: Session) -> None:
    """A request larger than the profile, with one context and with two: the same answers, in the caller's order."""
    rng = np.random.default_rng(3)
    request = request_of([int(length) for length in rng.integers(1, MAX_SEQ_LEN, 5 * MAX_BATCH)], 3)
    expected = plain.run(request)
    for contexts in (1, 2):
        with Session(plan, contexts=contexts) as session:
            for _ in range(3):
                check(session.run(request), expected)


def test_everything_in_the_order_of_a_torch_stream(session: Session, plain: Session) -> None:
    """A long chain of work on the stream makes the inputs; results are read on it, with no synchronisation between."""
    torch = pytest.importorskip("torch")
    arrays, lens = packed_of([100, 28, 64])
    expected = plain.run_packed(arrays, lens)["last_hidden_state"]
    stream = torch.cuda.Stream()
    weights = torch.randn(4096, 4096, device="cuda")
    source = torch.from_numpy(arrays["input_ids"]).cuda()
    types = torch.from_numpy(arrays["token_type_ids"]).cuda()
    sums = []
    for _ in range(6):
        with torch.cuda.stream(stream):
            busy = weights
            for _ in range(8):
                busy = busy @ weights * 0.01
            ids = torch.zeros_like(source)
            ids += source
            results = session.run_packed(
                {"input_ids": ids, "token_type_ids": types}, lens, outputs="device", stream=stream
            )
            sums.append(torch.from_dlpack(results["last_hidden_state"]).float().clone())
            del results, ids
    stream.synchronize()
    for made in sums:
        np.testing.assert_allclose(made.cpu().numpy(), expected, atol=TOLERANCE)


def test_rows_on_the_device(session: Session, plain: Session) -> None:
    torch = pytest.importorskip("torch")
    request = request_of([5, 0, 64, 31])
    expected = plain.run(request)
    for _ in range(3):
        results = session.run(request, outputs="device")
        made = {name: [torch.from_dlpack(row).cpu().numpy() for row in rows] for name, rows in results.items()}
        check(made, expected)


def test_results_outlive_the_session(plan: Path, plain: Session) -> None:
    torch = pytest.importorskip("torch")
    arrays, lens = packed_of([12, 30])
    with Session(plan) as session:
        results = session.run_packed(arrays, lens, outputs="device")
        host = session.run_packed(arrays, lens)
    kept = torch.from_dlpack(results["last_hidden_state"])
    del results
    expected = plain.run_packed(arrays, lens)["last_hidden_state"]
    np.testing.assert_allclose(kept.cpu().numpy(), expected, atol=TOLERANCE)
    np.testing.assert_allclose(host["last_hidden_state"], expected, atol=TOLERANCE)


class Interface:
    """An array on the GPU that only has the CUDA array interface, like those of PyCUDA."""

    def __init__(self, tensor: Any, **changes: Any) -> None:
        self.tensor = tensor
        self.__cuda_array_interface__ = {**tensor.__cuda_array_interface__, "version": 3, "stream": None, **changes}


def test_the_cuda_array_interface(session: Session, plain: Session) -> None:
    torch = pytest.importorskip("torch")
    arrays, lens = packed_of([40, 9])
    given = {name: Interface(torch.from_numpy(values).cuda()) for name, values in arrays.items()}
    results = session.run_packed(given, lens)
    expected = plain.run_packed(arrays, lens)
    for name, wanted in expected.items():
        np.testing.assert_allclose(results[name], wanted, atol=TOLERANCE)


def test_arrays_that_do_not_fit_are_refused(session: Session) -> None:
    torch = pytest.importorskip("torch")
    ids = torch.zeros(8, dtype=torch.int32, device="cuda")
    types = np.zeros(8, dtype=np.int32)
    pinned = torch.zeros(8, dtype=torch.int32).pin_memory()
    host = Interface(ids, data=(pinned.data_ptr(), False))
    for wrong, message in (
        (ids.long(), "'input_ids' on the GPU has type int64, the engine reads int32"),
        (torch.zeros(16, dtype=torch.int32, device="cuda")[::2], "allowed: contiguous arrays"),
        (host, "'input_ids' is in host memory, the session runs on GPU 0"),
        (ids.reshape(2, 4), "allowed: one dimension"),
    ):
        with pytest.raises(SessionError, match=message):
            session.run_packed({"input_ids": wrong, "token_type_ids": types}, [8])
    with pytest.raises(SessionError, match="seq_lens add up to 7"):
        session.run_packed({"input_ids": ids, "token_type_ids": types}, [7])


def test_pycuda_arrays_in_and_out(session: Session, plain: Session) -> None:
    pytest.importorskip("pycuda")
    import pycuda.autoprimaryctx
    import pycuda.driver
    from pycuda import gpuarray

    arrays, lens = packed_of([40, 9])
    expected = plain.run_packed(arrays, lens)["last_hidden_state"]
    given = {name: gpuarray.to_gpu(values) for name, values in arrays.items()}
    result = session.run_packed(given, gpuarray.to_gpu(lens), outputs="device", stream=pycuda.driver.Stream())
    pycuda.driver.Context.synchronize()
    interface = result["last_hidden_state"].__cuda_array_interface__
    made = gpuarray.GPUArray(interface["shape"], np.dtype(interface["typestr"]), gpudata=interface["data"][0])
    np.testing.assert_allclose(made.get(), expected, atol=TOLERANCE)


def test_cupy_arrays_in_and_out(session: Session, plain: Session) -> None:
    cupy = pytest.importorskip("cupy")
    arrays, lens = packed_of([40, 9])
    expected = plain.run_packed(arrays, lens)["last_hidden_state"]
    given = {name: cupy.asarray(values) for name, values in arrays.items()}
    results = session.run_packed(
        given, cupy.asarray(lens), outputs="device", stream=cupy.cuda.Stream(non_blocking=True)
    )
    for made in (cupy.asarray(results["last_hidden_state"]), cupy.from_dlpack(results["last_hidden_state"])):
        np.testing.assert_allclose(cupy.asnumpy(made), expected, atol=TOLERANCE)


def test_padded_engines_run_plain(tmp_path: Path, plain: Session) -> None:
    path = tmp_path / "padded.plan"
    build_engine(
        DEMO_DATA / "bert_tiny.onnx",
        path,
        interface="padded",
        precision="fp16",
        verify=False,
        max_batch=MAX_BATCH,
        max_seq_len=MAX_SEQ_LEN,
    )
    with Session(path) as session:
        for lengths in ([5, 128, 31], [128] * 16, [5, 128, 31]):
            request = request_of(lengths)
            check(session.run(request), plain.run(request))


def test_a_prepared_run_beside_others(session: Session, plain: Session) -> None:
    backend: Any = session.backend
    request = request_of([30, 4])
    with backend.prepare(session.feeds(read_request(request, session.metadata))) as prepared:
        graph = prepared.capture()
        check(session.run(request), plain.run(request))
        graph.launch()
        hidden = prepared.download()["last_hidden_state"]
        assert len(prepared.time_ms(5, graph=graph)) == 5
    np.testing.assert_allclose(hidden[:30], plain.run(request)["last_hidden_state"][0], atol=TOLERANCE)
