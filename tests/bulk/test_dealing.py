# SPDX-License-Identifier: Apache-2.0
"""Who gets which shard: a worker reads a row group from its first row on, and no group is read without need."""

from __future__ import annotations

from padfree.bulk.dealing import Waiting
from padfree.bulk.manifest import InputFile, Manifest, Model, Options, Piece

ROWS = 10


def manifest(*groups: int, kind: str = "parquet") -> Manifest:
    """The manifest of a file whose row groups have the given numbers of shards."""
    file = InputFile("/in", "/in", kind, 1, 0, "", "0", sum(groups) * ROWS)
    options = Options("embed", "out", ("text",), None, "", 8, "float32", 9, ROWS, None, None)
    shards, first = [], 0
    for group, count in enumerate(groups):
        for part in range(count):
            shards.append((Piece(0, group, part * ROWS, first, ROWS),))
            first += ROWS
    return Manifest(Model("m", "0", "0"), options, "row numbers", (file,), tuple(shards))


def waiting(job: Manifest) -> Waiting:
    return Waiting(job, range(len(job.shards)))


def test_a_worker_goes_on_in_its_row_group() -> None:
    left = waiting(manifest(3, 2, 2))
    assert [left.take(worker) for worker in (0, 1, 0, 1, 0, 1, 0)] == [0, 3, 1, 4, 2, 5, 6]
    assert not len(left)


def test_who_has_nothing_to_begin_takes_half_of_the_longest_rest() -> None:
    left = waiting(manifest(9, 4))
    assert [left.take(0), left.take(1)] == [0, 9]
    assert left.take(2) == 5  # half of 1 to 8, which is longer than 10 to 12
    assert [left.take(2), left.take(2), left.take(2)] == [6, 7, 8]
    assert left.take(2) == 3  # half of 1 to 4
    assert [left.take(0), left.take(0)] == [1, 2]
    assert left.take(0) == 11  # its own next shards are done
    assert [left.take(1), left.take(2), left.take(1)] == [10, 4, 12]
    assert not len(left)


def test_everything_is_dealt_once() -> None:
    for workers in (1, 2, 3, 7):
        job = manifest(1, 5, 2, 8, 1)
        left = waiting(job)
        taken = [left.take(turn % workers) for turn in range(len(job.shards))]
        assert sorted(taken) == list(range(len(job.shards)))


def test_other_files_are_dealt_in_order() -> None:
    left = waiting(manifest(6, kind="jsonl"))
    assert [left.take(worker) for worker in (0, 1, 0, 2, 1, 0)] == list(range(6))


def test_what_comes_back_is_the_first_again() -> None:
    left = waiting(manifest(1, 1, 3, 1))
    assert [left.take(0) for _ in range(4)] == [0, 1, 2, 3]
    left.put_back([1, 2, 3])
    assert [left.take(1) for _ in range(5)] == [1, 2, 3, 4, 5]


def test_shards_that_are_done_are_not_waited_for() -> None:
    job = manifest(4)
    left = Waiting(job, [1, 2, 3])  # an earlier driver did shard 0
    assert sorted(left.take(0) for _ in range(3)) == [1, 2, 3]
