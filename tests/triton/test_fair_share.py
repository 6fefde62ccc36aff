# SPDX-License-Identifier: Apache-2.0
"""Clients that share a model in the Python backend (`--fair-share`), on a real server."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from padfree.builder.triton import ServingOptions, write_repository
from padfree.runtime import Session
from padfree.runtime.triton.probe import main

from tests.support.triton_server import TritonServer, try_on_servers

from .calls import PROTOCOLS, call, call_all, rows, texts
from .processes import processes_of, wait_until
from .served_kinds import OUTPUTS, TOKENIZER, assert_right, random_sequences

pytestmark = pytest.mark.needs_triton

MODEL, TEXTS = "shared", "shared_text"
FLOOD, TOKENS, SINGLES = 1200, 400, 8
SHARE = 0.25
"""The share of a flood's time that another request may wait; in order of arrival it would wait for nearly all."""


@pytest.fixture(scope="module")
def shared(
    server: TritonServer, model_file: Path, other_repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    """A server with a model whose clients share it, and its text ensemble."""
    options = ServingOptions(MODEL, fair_share=True, tokenizer=TOKENIZER)
    written = write_repository(model_file, tmp_path_factory.mktemp(MODEL) / "repository", options).folder
    for name in (MODEL, f"{MODEL}_tokenizer", TEXTS):
        (written / name).rename(other_repository / name)
    server.post(f"v2/repository/models/{TEXTS}/load")  # which loads its parts, too
    yield server
    server.post(f"v2/repository/models/{TEXTS}/unload?unload_dependents=true")


def count(server: TritonServer, name: str) -> float:
    time.sleep(2.0)  # the model updates the page once per second
    page = server.get("metrics", "metrics")
    return sum(map(float, re.findall(rf'^padfree_{name}\{{.*model="{MODEL}".*\}} (\S+)$', page, re.MULTILINE)))


class Client:
    """Sends requests of ids over gRPC, in this thread's event loop."""

    def __init__(self, server: TritonServer) -> None:
        import tritonclient.grpc
        import tritonclient.grpc.aio

        self._module: Any = tritonclient.grpc
        self._client: Any = tritonclient.grpc.aio.InferenceServerClient(server.url("grpc"))

    async def ask(self, ids: Sequence[int], **options: Any) -> Any:
        """Sends one sequence, and returns its vector."""
        tensor = self._module.InferInput("input_ids", [1, len(ids)], "INT32")
        tensor.set_data_from_numpy(np.array([ids], np.int32))
        wanted = [self._module.InferRequestedOutput("pooler_output")]
        reply = await self._client.infer(MODEL, [tensor], outputs=wanted, **options)
        return reply.as_numpy("pooler_output")

    async def ask_text(self, text: str, **options: Any) -> None:
        """Sends one text through the ensemble."""
        tensor = self._module.InferInput("text", [1, 1], "BYTES")
        tensor.set_data_from_numpy(texts(text))
        wanted = [self._module.InferRequestedOutput("pooler_output")]
        await self._client.infer(TEXTS, [tensor], outputs=wanted, **options)

    async def close(self) -> None:
        await self._client.close()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_answers_are_those_of_their_requests(shared: TritonServer, session: Session, protocol: str) -> None:
    sequences = random_sequences(5, 60)
    requests = [rows([row]) for row in sequences] + [rows(sequences[:5])] + [rows([[7, 99_999]])]
    *answers, several, refused = call_all(shared, protocol, MODEL, requests, OUTPUTS)
    for answer, row in zip(answers, sequences, strict=True):
        assert_right(answer, [row], session)
    assert_right(several, sequences[:5], session)
    assert "99999" in str(refused)
    assert isinstance(call(shared, protocol, TEXTS, {"text": texts("a cat")}, OUTPUTS), dict)


@pytest.mark.parametrize("names", [{"parameters": {"client": "a"}}, {"sequence_id": 5}], ids=["parameter", "id"])
def test_one_request_waits_for_a_turn_and_not_for_a_flood(shared: TritonServer, names: dict[str, Any]) -> None:
    flood_s, waits_s = asyncio.run(_beside_a_flood(shared, names))
    assert max(waits_s) < SHARE * flood_s, (flood_s, waits_s)


async def _beside_a_flood(server: TritonServer, names: dict[str, Any]) -> tuple[float, list[float]]:
    """The seconds of a flood by one client, and of each request by another, who sends one after the other."""
    client = Client(server)
    ids = np.random.default_rng(0).integers(1, 900, TOKENS).tolist()
    begin = time.monotonic()
    flood = [asyncio.create_task(client.ask(ids, parameters={"client": "flood"})) for _ in range(FLOOD)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    waits_s = []
    for _ in range(SINGLES):
        start = time.monotonic()
        await client.ask(ids[:10], **names)
        waits_s.append(time.monotonic() - start)
    assert not all(task.done() for task in flood)
    await asyncio.gather(*flood)
    await client.close()
    return time.monotonic() - begin, waits_s


@pytest.mark.parametrize("names", [{"parameters": {"client": "a"}}, {"sequence_id": 5}], ids=["parameter", "id"])
def test_a_text_waits_for_a_turn_and_not_for_a_flood(shared: TritonServer, names: dict[str, Any]) -> None:
    """The ensemble passes parameters and ids on. Its tokenizer serves in order of arrival, and is much faster."""
    flood_s, waits_s = asyncio.run(_beside_a_flood_of_texts(shared, names))
    assert max(waits_s) < 2 * SHARE * flood_s, (flood_s, waits_s)


async def _beside_a_flood_of_texts(server: TritonServer, names: dict[str, Any]) -> tuple[float, list[float]]:
    client = Client(server)
    begin = time.monotonic()
    flood = [
        asyncio.create_task(client.ask_text("a cat " * TOKENS, parameters={"client": "flood"}))
        for _ in range(FLOOD // 2)
    ]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    waits_s = []
    for _ in range(3):
        start = time.monotonic()
        await client.ask_text("a cat", **names)
        waits_s.append(time.monotonic() - start)
    assert not all(task.done() for task in flood)
    await asyncio.gather(*flood)
    await client.close()
    return time.monotonic() - begin, waits_s


def test_cancelled_requests_are_not_computed(installed: Path, model_file: Path, tmp_path: Path) -> None:
    repository = write_repository(model_file, tmp_path / "repository", ServingOptions(MODEL, fair_share=True)).folder
    servers = itertools.count()

    def start() -> TritonServer:
        folder = tmp_path / f"server{next(servers)}"
        folder.mkdir()
        return TritonServer(installed, [repository], folder)

    def cancel(server: TritonServer) -> None:
        asyncio.run(_cancel_a_flood(server))
        wait_until(lambda: "pooler_output" in call(server, "grpc", MODEL, rows([[1, 2]]), OUTPUTS), "an answer")
        assert count(server, "tokens_total") < 0.8 * FLOOD * TOKENS  # some run before the first answer comes
        assert count(server, "failed_requests_total") == 0

    try_on_servers(start, cancel)


async def _cancel_a_flood(server: TritonServer) -> None:
    client = Client(server)
    ids = [5] * TOKENS
    flood = [asyncio.create_task(client.ask(ids)) for _ in range(FLOOD)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
    for task in flood:
        task.cancel()
    await asyncio.gather(*flood, return_exceptions=True)
    await client.close()


def test_a_model_s_process_that_stands_still_goes_on(shared: TritonServer, session: Session) -> None:
    (pid,) = map(int, processes_of(MODEL))
    sequences = random_sequences(8, 20)
    os.kill(pid, signal.SIGSTOP)
    try:
        answers = asyncio.run(_ask_and_wake(shared, sequences, pid))
    finally:
        os.kill(pid, signal.SIGCONT)
    for answer, row in zip(answers, sequences, strict=True):
        np.testing.assert_allclose(answer, session.run([row])["pooler_output"], atol=1e-5)


async def _ask_and_wake(server: TritonServer, sequences: Sequence[Sequence[int]], pid: int) -> list[Any]:
    client = Client(server)
    asked = [asyncio.create_task(client.ask(row)) for row in sequences]
    await asyncio.sleep(1.0)
    assert not any(one.done() for one in asked)
    os.kill(pid, signal.SIGCONT)
    answers = list(await asyncio.gather(*asked))
    await client.close()
    return answers


def test_who_comes_after_a_model_s_process_was_killed_is_told_and_other_models_go_on(
    installed: Path, model_file: Path, session: Session, tmp_path: Path
) -> None:
    """Requests that the killed process had taken are never answered, as this server (2.51) forgets them.

    Nor does the server survive a process that holds one of its locks at that moment.
    """
    repositories = [
        write_repository(model_file, tmp_path / name, ServingOptions(name, fair_share=name == "killed")).folder
        for name in ("killed", "other")
    ]
    with TritonServer(installed, repositories, tmp_path, "--exit-timeout-secs=1") as server:
        assert_right(call(server, "grpc", "killed", rows([[7, 8]]), OUTPUTS), [[7, 8]], session)
        (pid,) = map(int, processes_of("killed"))
        os.kill(pid, signal.SIGKILL)
        (told,) = call_all(server, "grpc", "killed", [rows([[7, 8]])], OUTPUTS)
        assert isinstance(told, Exception)
        if "lock_exception" in server.log.read_text(errors="replace"):
            pytest.skip("the process held a lock of Triton's, which ends the server")
        assert_right(call(server, "grpc", "other", rows([[7, 8]]), OUTPUTS), [[7, 8]], session)
        address = ["--url", f"http://{server.url('http')}", "--pause", "0.1"]
        assert [main([name, *address]) for name in ("other", "killed")] == [0, 1]
