# SPDX-License-Identifier: Apache-2.0
"""Bulk work that is killed, whose inputs are edited, whose disk is full, whose node is lost: equal bits or a refusal.

    python -m tests.hostile.bulk                  # 50 kills, 8 edits, 8 full disks, a lost node on Ray
    python -m tests.hostile.bulk --kills 4 --edits 1 --full 1 --no-ray

Prints JSON; the exit code is 1 where a part has other bits than those that one undisturbed process makes, or a command
ended otherwise than it should.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from padfree.bulk import Request

from tests.support.bulk_jobs import Command, children, parts_of, result_files, run_here, texts, write_embedder

TEXTS, SHARD_ROWS = 20_000, 10
EDITED, EDIT = b"nobody knows", b"nobody heard"
FULL_BYTES, DISK = 1 << 10, "2m"
EDIT_REFUSED = ("another content", "has another content now")


class Bulk:
    """A job, and the result of one undisturbed process.

    Args:
        folder: for all files.
        seed: for the moments at which something happens.

    Attributes:
        outcomes: how commands ended.
        wrong: what should not have happened.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._folder, self._rng = folder, random.Random(seed)
        self._model = write_embedder(folder / "model.onnx")
        self._input = folder / "in.txt"
        self._input.write_text("\n".join(texts(TEXTS)) + "\n", encoding="utf-8")
        alone = folder / "alone"
        run_here(Request([str(self._input)], str(alone), self._model, shard_rows=SHARD_ROWS))
        self._wanted = result_files(alone)

    def kills(self, count: int) -> None:
        """Kills workers and drivers by turns."""
        output = self._folder / "killed"
        command = self._command(output)
        for kill in range(count):
            if not command.wait_at_random(output, self._rng):
                self._expect(command, output, 0, "killed too late")
                shutil.rmtree(output)
                command = self._command(output)
            elif kill % 2:
                self.outcomes["worker killed"] += command.kill_one(self._rng)
            else:
                command.kill()
                self.outcomes["driver killed"] += 1
                self._compare(output, "kill")
                command = self._command(output)
        self._expect(command, output, 0, "went on after kills")
        self._verify(output)

    def edits(self, count: int) -> None:
        """Puts other content into the input, with its old size and time, for as long as the command runs."""
        content, times = self._input.read_bytes(), self._input.stat()
        for at in range(count):
            output = self._folder / f"edited-{at}"
            command = self._command(output)
            command.wait_at_random(output, self._rng)
            self._write(content.replace(EDITED, EDIT), times)
            code, errors = command.end()
            self._compare(output, "edit")
            refused = code == 1 and any(words in errors for words in EDIT_REFUSED)
            self.outcomes["edited: refused" if refused else "edited: done before"] += 1
            if not refused and code:
                self.wrong.append(f"edited: {code} {errors[-300:]}")
            self._write(content, times)
            self._expect(self._command(output), output, 0, "went on after an edit")

    def full_disks(self, count: int) -> None:
        """From some moment on, no file can grow any more."""
        for at in range(count):
            output = self._folder / f"full-{at}"
            command = self._command(output)
            command.wait_at_random(output, self._rng)
            for pid in [command.process.pid, *children(command.process.pid, "spawn_main")]:
                with suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, resource.RLIM_INFINITY))
            code, errors = command.end()
            self._compare(output, "full disk")
            self.outcomes["full disk: refused" if code else "full disk: done before"] += 1
            if code and "File too large" not in errors:
                self.wrong.append(f"full disk: {code} {errors[-300:]}")
            self._expect(self._command(output), output, 0, "went on after a full disk")

    def small_disk(self) -> None:
        """Runs the job on a small filesystem without room for the result, if this user may mount one."""
        disk, kept = self._folder / "disk", self._folder / "kept"
        disk.mkdir()
        kept.mkdir()
        script = f"mount -t tmpfs -o size={DISK} none {disk} && {{ {self._line(disk / 'out')}; "
        script += f"code=$?; cp {disk}/out/part-* {kept}; exit $code; }}"
        tried = subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False)
        if tried.returncode:
            self.outcomes["small disk: skipped, for no filesystem may be mounted here"] += 1
            return
        done = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True, text=True, check=False)
        self._compare(kept, "small disk")
        self.outcomes["small disk: refused"] += done.returncode == 1
        if done.returncode != 1 or "No space left on device" not in done.stderr:
            self.wrong.append(f"small disk: {done.returncode} {done.stderr[-300:]}")

    def lost_node(self) -> None:
        """Removes one of two nodes of a Ray cluster while actors work on both."""
        try:
            from ray.cluster_utils import Cluster
        except ImportError:
            self.outcomes["lost node: skipped, for there is no ray: pip install '.[ray]'"] += 1
            return
        output = self._folder / "node"
        cluster: Any = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=2)
            command = self._command(output, "--ray", cluster.address)
            command.wait_at_random(output, self._rng)
            with command.pause():
                cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
                cluster.add_node(num_cpus=2)
            code, _ = command.end()
            self._compare(output, "lost node")
            self.outcomes["lost node: went on" if code == 0 else "lost node: ended"] += 1
            self._expect(self._command(output, "--ray", cluster.address), output, 0, "went on after a lost node")
        finally:
            cluster.shutdown()

    def _line(self, output: Path, *more: str) -> str:
        arguments = ["--input", str(self._input), "-o", str(output), "--engine", str(self._model), *more]
        return " ".join([sys.executable, "-m", "padfree.builder.cli", "embed", *arguments, *_SMALL])

    def _command(self, output: Path, *more: str) -> Command:
        return Command("--input", str(self._input), "-o", str(output), "--engine", str(self._model), *_SMALL, *more)

    def _write(self, content: bytes, times: os.stat_result) -> None:
        with self._input.open("r+b") as stream:
            stream.write(content)
        os.utime(self._input, ns=(times.st_atime_ns, times.st_mtime_ns))

    def _compare(self, output: Path, after: str) -> None:
        """Checks that the parts that exist have the right bits."""
        found = {name: content for name, content in result_files(output).items() if not name.startswith(".")}
        self.wrong += [f"{after}: {name} has other bits" for name in found if found[name] != self._wanted.get(name)]

    def _expect(self, command: Command, output: Path, code: int, what: str) -> None:
        """Checks that the command ends with this code and that the result is whole."""
        found, errors = command.end(600.0)
        self.outcomes[what] += found == code
        if found != code:
            self.wrong.append(f"{what}: {found} {errors[-300:]}")
        elif result_files(output) != self._wanted:
            self.wrong.append(f"{what}: other bits, or {parts_of(output)} parts of {len(self._wanted)}")

    def _verify(self, output: Path) -> None:
        code, errors = self._command(output, "--verify").end(600.0)
        self.outcomes["verified"] += code == 0
        if code:
            self.wrong.append(f"--verify: {errors[-300:]}")


_SMALL = ("--shard-rows", str(SHARD_ROWS), "--workers", "2", "--tokenizers", "1")


def main() -> int:
    """Runs the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile.bulk", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--edits", type=int, default=8)
    parser.add_argument("--full", type=int, default=8)
    parser.add_argument("--no-ray", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path, help="a file for what is printed")
    arguments = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        bulk = Bulk(Path(folder), arguments.seed)
        bulk.kills(arguments.kills)
        bulk.edits(arguments.edits)
        bulk.full_disks(arguments.full)
        bulk.small_disk()
        if not arguments.no_ray:
            bulk.lost_node()
    seconds = round(time.monotonic() - begin)
    found = {"seconds": seconds, "texts": TEXTS, "outcomes": dict(sorted(bulk.outcomes.items())), "wrong": bulk.wrong}
    text = json.dumps(found, indent=1) + "\n"
    sys.stdout.write(text)
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
    return int(bool(bulk.wrong))


if __name__ == "__main__":
    sys.exit(main())
