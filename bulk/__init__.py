# SPDX-License-Identifier: Apache-2.0
"""padfree.bulk: vectors and scores of whole data sets, on every GPU of a machine or of a Ray cluster, exactly once."""

from .driver import Progress
from .errors import BulkError
from .job import Finished, Running, embed
from .report import Report
from .request import Request
from .verify import Verified
from .workers.local import LocalWorkers, on_cpu, one_a_gpu
from .workers.worker import WorkerSpec

__all__ = [
    "BulkError",
    "Finished",
    "LocalWorkers",
    "Progress",
    "Report",
    "Request",
    "Running",
    "Verified",
    "WorkerSpec",
    "embed",
    "on_cpu",
    "one_a_gpu",
]
