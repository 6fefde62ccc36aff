# SPDX-License-Identifier: Apache-2.0
"""Whatever is killed, and whenever, every row is there once, with the bits that one undisturbed process makes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from padfree.bulk import BulkError, LocalWorkers, Request, Running, WorkerSpec, embed, on_cpu
from pyarrow import parquet

from tests.support.bulk_jobs import Command, parts_of, result_files, run_here, texts, wait_until_steady, write_lines
from tests.support.served_models import expected_rows

TEXTS, SHARD_ROWS, KILLS = 20_000, 10, 10
"""Small shards: a fast machine does hundreds of them per second, and all kills have to come before the end."""
SHARDS = TEXTS // SHARD_ROWS


def vectors(output: Path) -> tuple[list[str], np.ndarray]:
    table = parquet.read_table(output)
    column = table.column("embedding").combine_chunks()
    assert pa.types.is_fixed_size_list(column.type)
    return table.column("id").to_pylist(), column.flatten().to_numpy().reshape(len(column), -1)


@pytest.mark.slow
def test_workers_and_drivers_that_are_killed_cost_nothing_but_time(tmp_path: Path, embedder: Path) -> None:
    some = texts(TEXTS)
    inputs = write_lines(tmp_path / "in.jsonl", [{"id": f"x{at}", "text": text} for at, text in enumerate(some)])
    alone, output = tmp_path / "alone", tmp_path / "killed"
    request = Request([str(inputs)], str(alone), embedder, id_column="id", shard_rows=SHARD_ROWS)
    assert run_here(request).report.texts == TEXTS

    rng = random.Random(5)
    arguments = ["--input", str(inputs), "-o", str(output), "--engine", str(embedder), "--id", "id"]
    arguments += ["--shard-rows", str(SHARD_ROWS), "--workers", "2", "--tokenizers", "1"]
    command = Command(*arguments)
    for kill in range(KILLS):
        assert command.wait_at_random(output, rng), command.end()[1]
        if kill % 2:
            while not command.kill_one(rng):
                assert command.process.poll() is None
        else:
            command.kill()
            command = Command(*arguments)
    assert parts_of(output) < SHARDS  # all kills came before the end
    code, errors = command.end()
    assert code == 0, errors
    assert Command(*arguments, "--verify").end()[0] == 0

    ids, actual = vectors(output)
    assert ids == [f"x{at}" for at in range(TEXTS)]
    assert result_files(output) == result_files(alone)
    sample = list(range(0, TEXTS, 997))
    np.testing.assert_allclose(actual[sample], expected_rows([some[at] for at in sample]), rtol=1e-4, atol=1e-4)
    assert not [path for path in output.iterdir() if path.name.endswith(".partial")]


def test_another_number_of_workers_and_threads_gives_the_same_bits(tmp_path: Path, embedder: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(texts(600)), encoding="utf-8")
    outputs = []
    for workers, threads in ((1, 2), (2, 1)):
        output = tmp_path / f"out-{workers}"
        request = Request([str(tmp_path / "in.txt")], str(output), embedder, shard_rows=100, max_tokens=500)
        report = run_here(request, workers, threads=threads).report
        assert (report.texts, report.shards, len(report.workers)) == (600, 6, workers)
        outputs.append(result_files(output))
    assert outputs[0] == outputs[1]


def test_a_second_run_does_what_is_missing_and_a_third_nothing(tmp_path: Path, embedder: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(texts(300)), encoding="utf-8")
    output = tmp_path / "out"
    request = Request([str(tmp_path / "in.txt")], str(output), embedder, shard_rows=100)
    assert run_here(request).report.shards_found == 0
    before = result_files(output)
    (output / "part-000001.parquet").unlink()
    (output / "part-000002.parquet").write_bytes(before["part-000002.parquet"][:-9])  # as an interrupted copy leaves it
    report = run_here(request).report
    assert (report.shards_found, report.texts_now, report.texts) == (1, 200, 300)
    assert result_files(output) == before
    times = {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")}
    report = run_here(request).report
    assert (report.shards_found, report.texts_now, report.workers) == (3, 0, ())
    assert {path.name: path.stat().st_mtime_ns for path in output.glob("part-*")} == times


def test_a_driver_that_was_killed_before_its_report_is_followed_by_one_that_writes_it(
    tmp_path: Path, embedder: Path
) -> None:
    (tmp_path / "in.txt").write_text("\n".join(texts(20)), encoding="utf-8")
    request = Request([str(tmp_path / "in.txt")], str(tmp_path / "out"), embedder)
    run_here(request)
    (tmp_path / "out" / "_report.json").unlink()
    run_here(request)
    assert json.loads((tmp_path / "out" / "_report.json").read_text())["texts"] == 20


def test_an_output_folder_that_is_swapped_for_a_link_gets_nothing_elsewhere(tmp_path: Path, embedder: Path) -> None:
    (tmp_path / "in.txt").write_text("\n".join(texts(4000)), encoding="utf-8")
    alone, output, trap = tmp_path / "alone", tmp_path / "out", tmp_path / "trap"
    request = Request([str(tmp_path / "in.txt")], str(alone), embedder, shard_rows=SHARD_ROWS)
    run_here(request)
    trap.mkdir()
    arguments = ["--input", str(tmp_path / "in.txt"), "-o", str(output), "--engine", str(embedder)]
    arguments += ["--shard-rows", str(SHARD_ROWS), "--workers", "1", "--tokenizers", "1"]
    command = Command(*arguments)
    assert command.wait_for_parts(output, 2)
    with command.pause():  # no worker may run while there is no folder
        wait_until_steady(output)
        output.rename(tmp_path / "moved")
        output.symlink_to(trap)
    code, errors = command.end()
    assert code == 1
    assert f"{output}: has become a link to {trap} since the command began" in " ".join(errors.split())
    assert list(trap.iterdir()) == []
    output.unlink()
    (tmp_path / "moved").rename(output)
    assert Command(*arguments).end()[0] == 0
    assert result_files(output) == result_files(alone)


def test_a_worker_does_nothing_where_the_manifest_is_another(tmp_path: Path, embedder: Path) -> None:
    """The folder may have been replaced, or the machine may have another disk under this name."""
    (tmp_path / "in.txt").write_text("\n".join(texts(40)), encoding="utf-8")
    output = tmp_path / "out"
    request = Request([str(tmp_path / "in.txt")], str(output), embedder, shard_rows=SHARD_ROWS)

    def make(spec: WorkerSpec) -> LocalWorkers:
        output.rename(tmp_path / "moved")
        output.mkdir()
        return LocalWorkers(spec, *on_cpu(1))

    with pytest.raises(BulkError, match="holds no manifest of this job where the worker looks"):
        embed(request, Running(tokenizers=1, cpu_threads=1, runs=1), make)
    assert parts_of(output) == 0
