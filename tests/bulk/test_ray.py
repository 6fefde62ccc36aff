# SPDX-License-Identifier: Apache-2.0
"""The same work on a Ray cluster of two nodes, whose actors, nodes and drivers are killed."""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from padfree.bulk import Request
from pyarrow import parquet

from tests.support.bulk_jobs import Command, parts_of, result_files, run_here, texts, write_lines
from tests.support.served_models import wait_until

pytest.importorskip("ray")
pytestmark = pytest.mark.slow

TEXTS, SHARD_ROWS, KILLS = 20_000, 10, 10
SHARDS = TEXTS // SHARD_ROWS
GIVEN_AGAIN = 3
"""How often the command may end early: on a busy machine, Ray gives up a driver whose nodes die."""
ACTOR = "ray::_Actor"
CORES = 2


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of two nodes on this machine."""
    from ray.cluster_utils import Cluster

    actual = Cluster(initialize_head=True, head_node_args={"num_cpus": CORES, "include_dashboard": False})
    actual.add_node(num_cpus=CORES)
    yield actual
    actual.shutdown()


def actors() -> list[int]:
    """The process ids of padfree's actors."""
    results = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if path.read_bytes().startswith(ACTOR.encode()):
                results.append(int(path.parent.name))
    return results


def wait_for_actors(command: Command) -> None:
    """Waits until there are actors, or the command has ended."""
    wait_until(lambda: actors() or command.process.poll() is not None)


def test_actors_nodes_and_drivers_that_are_killed_cost_nothing_but_time(
    tmp_path: Path, embedder: Path, cluster: Any
) -> None:
    some = texts(TEXTS)
    inputs = write_lines(tmp_path / "in.jsonl", [{"id": f"x{at}", "text": text} for at, text in enumerate(some)])
    alone, output = tmp_path / "alone", tmp_path / "cluster"
    run_here(Request([str(inputs)], str(alone), embedder, id_column="id", shard_rows=SHARD_ROWS))

    rng = random.Random(7)
    arguments = ["--input", str(inputs), "-o", str(output), "--engine", str(embedder), "--id", "id"]
    arguments += ["--shard-rows", str(SHARD_ROWS), "--workers", "2", "--tokenizers", "1", "--ray", cluster.address]
    command, ended = Command(*arguments), 0
    for kill in range(KILLS):
        while not command.wait_at_random(output, rng):
            ended += 1
            assert ended <= GIVEN_AGAIN, command.end()[1]
            command = Command(*arguments)
        if kill == 5:
            with command.pause():  # a node takes seconds to start, in which the other one would do everything
                cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
                cluster.add_node(num_cpus=CORES)
        elif kill in (2, 8):
            command.kill()
            command = Command(*arguments)
        else:
            wait_for_actors(command)
            with suppress(ProcessLookupError, IndexError):  # they end by themselves, too
                os.kill(rng.choice(actors()), signal.SIGKILL)
    assert parts_of(output) < SHARDS  # all kills came before the end
    code, errors = command.end()
    while code != 0 and ended < GIVEN_AGAIN:
        ended += 1
        code, errors = Command(*arguments).end()
    assert code == 0, errors
    assert Command(*arguments[:-2], "--verify").end()[0] == 0
    assert parquet.read_table(output).column("id").to_pylist() == [f"x{at}" for at in range(TEXTS)]
    assert result_files(output) == result_files(alone)


def test_without_a_cluster(tmp_path: Path, embedder: Path) -> None:
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    arguments = ["--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--engine", str(embedder)]
    code, errors = Command(*arguments, "--ray", "127.0.0.1:1").end()
    assert code == 1
    assert "--ray 127.0.0.1:1: no cluster answers" in errors


def test_a_cluster_without_room(tmp_path: Path, embedder: Path, cluster: Any) -> None:
    (tmp_path / "in.txt").write_text("a\n", encoding="utf-8")
    arguments = ["--input", str(tmp_path / "in.txt"), "-o", str(tmp_path / "out"), "--engine", str(embedder)]
    code, errors = Command(*arguments, "--ray", cluster.address, "--tokenizers", "50").end()
    assert code == 1
    wanted = r"an actor takes \d\d cores and 0 GPUs, and no machine has more than 2 cores"
    assert re.search(wanted, " ".join(errors.split()))
