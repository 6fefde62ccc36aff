# SPDX-License-Identifier: Apache-2.0
"""Models come and go while requests are under way, and the server ends without losing any."""

from __future__ import annotations

import re
import threading
import urllib.error
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime import Session

from tests.support.triton_server import TritonServer

from .calls import PROTOCOLS, Answer, call, call_all, rows, texts
from .processes import processes_of, wait_until
from .served_kinds import OUTPUTS, assert_right, random_sequences

pytestmark = pytest.mark.needs_triton

NOT_SERVED = re.compile("not ready|unavailable|not found|no available versions|unloading", re.IGNORECASE)


SERIES_OF_FREED = 'model="freed",pid='
SHARED_MEMORY = Path("/dev/shm")


def is_served(server: TritonServer, model: str) -> bool:
    try:
        server.get(f"v2/models/{model}/ready")
    except urllib.error.HTTPError:
        return False
    return True


def test_reload_under_load(server: TritonServer, session: Session) -> None:
    sequences = random_sequences(3, 40)
    stop = threading.Event()
    rounds: list[list[Answer]] = []

    def load() -> None:
        while not stop.is_set():
            rounds.append(call_all(server, "grpc", "bert", [rows([row]) for row in sequences], OUTPUTS))

    def next_rounds(count: int) -> None:
        wanted = len(rounds) + count
        wait_until(lambda: len(rounds) >= wanted, "more rounds of requests")

    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        try:
            next_rounds(2)
            server.post("v2/repository/models/bert/unload")
            wait_until(lambda: not is_served(server, "bert"), "unload")
            next_rounds(2)
            server.post("v2/repository/models/bert/load")
            wait_until(lambda: is_served(server, "bert"), "load")
            next_rounds(2)
        finally:
            stop.set()
        loading.result()
    served = [not any(isinstance(answer, Exception) for answer in answers) for answers in rounds]
    assert served[0]
    assert served[-1]
    assert not all(served)
    for answers in rounds:
        for answer, row in zip(answers, sequences, strict=True):
            if isinstance(answer, Exception):
                assert NOT_SERVED.search(str(answer)), answer
            else:
                assert_right(answer, [row], session)
    call(server, "http", "bert_text", {"text": texts("the ensemble is there again")}, OUTPUTS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_sigterm_lets_requests_finish(
    installed: Path, model_file: Path, session: Session, tmp_path: Path, protocol: str
) -> None:
    options = ServingOptions("bert", max_queue_delay_us=1_500_000)  # requests wait in the queue for more to come
    repository = write_repository(model_file, tmp_path / "repository", options).folder
    sequences = random_sequences(4, 20)
    with TritonServer(installed, [repository], tmp_path) as server, ThreadPoolExecutor(1) as pool:
        sent = pool.submit(call_all, server, protocol, "bert", [rows([row]) for row in sequences], OUTPUTS)
        waiting = 'nv_inference_pending_request_count{model="bert",version="1"} 20\n'
        wait_until(lambda: waiting in server.get("metrics", "metrics"), "20 requests in the queue")
        server.terminate()
        answers = sent.result()
        assert server.wait() == 0
    for answer, row in zip(answers, sequences, strict=True):
        assert_right(answer, [row], session)


def test_unload_frees_what_the_model_held(
    server: TritonServer, model_file: Path, other_repository: Path, tmp_path: Path
) -> None:
    written = write_repository(model_file, tmp_path / "repository", ServingOptions("freed", instances=2)).folder
    (written / "freed").rename(other_repository / "freed")
    server.post("v2/repository/models/freed/load")
    call_all(server, "grpc", "freed", [rows([row]) for row in random_sequences(9, 20)], OUTPUTS)
    wait_until(lambda: SERIES_OF_FREED in server.get("metrics", "metrics"), "its series on the page")
    processes = processes_of("freed")
    regions = [SHARED_MEMORY / command[2] for command in processes.values()]
    assert len(processes) == 2
    assert all(region.exists() for region in regions)
    server.post("v2/repository/models/freed/unload")
    wait_until(lambda: not processes_of("freed"), "the end of its processes")
    wait_until(lambda: SERIES_OF_FREED not in server.get("metrics", "metrics"), "its series off the page")
    wait_until(lambda: not any(region.exists() for region in regions), "the end of its shared memory")


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("padfree_tokens", "9", "unknown parameter 'padfree_tokens', allowed: padfree_model"),
        ("padfree_max_tokens", "99999", "'padfree_max_tokens' is 99999, allowed: at most 16384"),
    ],
)
def test_wrong_parameters_are_refused_at_load(
    server: TritonServer,
    model_file: Path,
    other_repository: Path,
    tmp_path: Path,
    parameter: str,
    value: str,
    message: str,
) -> None:
    written = write_repository(model_file, tmp_path / "repository", ServingOptions(parameter)).folder
    (written / parameter).rename(other_repository / parameter)
    with (other_repository / parameter / "config.pbtxt").open("a") as config:
        config.write(f'parameters {{ key: "{parameter}" value {{ string_value: "{value}" }} }}\n')
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post(f"v2/repository/models/{parameter}/load")
    assert message in refused.value.read().decode()
