# SPDX-License-Identifier: Apache-2.0
"""CPU seconds of rewriting and verifying every committed ONNX file, beside those of another commit.

    git worktree add --detach ../before 6346721a
    python -m benchmarks.rewriting --before ../before

Both commits take the files that the older one has, in alternation, each in a process of its own with one thread. A
file's time is the least of its rounds. Needs no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

from .measurement import ROOT, Worker, compare, fixtures


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the files that take longer than before, the longest first, and the sums."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rewriting", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", type=Path, required=True, help="source tree of the other commit")
    parser.add_argument("--rounds", type=int, default=2, help="rewritings of each file by each commit")
    parser.add_argument("--every", type=int, default=1, help="take every N-th file")
    parser.add_argument("--only", default="", help="files whose name holds this text")
    parser.add_argument("--interfaces", default="packed,padded", help="which interfaces are made")
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "files").mkdir()
        paths = [path for path in fixtures(arguments.before, folder / "files") if arguments.only in path.name]
        trees = {"before": arguments.before.resolve(), "after": ROOT}
        workers = [stack.enter_context(Worker(tree, folder / key)) for key, tree in trees.items()]
        interfaces = arguments.interfaces.split(",")
        times = list(compare(workers, paths[:: arguments.every], interfaces, arguments.rounds))
    for item in sorted(times, key=lambda item: item.before - item.after):
        if item.after > item.before:
            print(f"{item.name} {item.interface}: {item.before:.3f} s before, {item.after:.3f} s after")
    before, after = sum(item.before for item in times), sum(item.after for item in times)
    count = len({item.name for item in times})
    print(f"{count} files, {len(times)} rewritings: {before:.2f} s before, {after:.2f} s after, {after / before:.3f} x")


if __name__ == "__main__":
    main()
