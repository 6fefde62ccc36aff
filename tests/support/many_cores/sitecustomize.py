# SPDX-License-Identifier: Apache-2.0
"""More cores than there are. Python imports this as it starts where the folder is on PYTHONPATH (support/cores.py).

Thread pools of Python and onnxruntime start as many threads as PADFREE_TEST_CORES says.
"""

import os

import onnxruntime as ort

CORES = int(os.environ["PADFREE_TEST_CORES"])


class SessionOptions(ort.SessionOptions):  # type: ignore[misc]
    """As many threads as on a machine with so many cores."""

    def __init__(self) -> None:
        super().__init__()
        self.intra_op_num_threads = CORES


os.cpu_count = lambda: CORES
os.sched_getaffinity = lambda _: set(range(CORES))
ort.SessionOptions = SessionOptions
