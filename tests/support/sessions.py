# SPDX-License-Identifier: Apache-2.0
"""Sessions of onnxruntime in the processes that run tests: none spins, as there is one process for each core."""

from __future__ import annotations

import functools
import sys
from typing import Any

SPINNING = "session.intra_op.allow_spinning"


def leave_cores_to_others() -> None:
    """Sessions without options of their own get one thread, and the threads of others wait without spinning.

    By default, a session starts a thread for each further core, which spins while it waits: to open and run a tiny
    model took three times as much of the processors, and the other processes of pytest waited for them. Nothing
    happens where no test has imported onnxruntime.
    """
    module: Any = sys.modules.get("onnxruntime")
    if module is None or hasattr(module.InferenceSession.__init__, "__wrapped__"):
        return
    make = module.InferenceSession.__init__

    @functools.wraps(make)
    def make_patient(session: Any, source: Any, sess_options: Any = None, *arguments: Any, **others: Any) -> None:
        options = sess_options
        if options is None:
            options = module.SessionOptions()
            options.intra_op_num_threads = 1
        try:
            options.get_session_config_entry(SPINNING)
        except RuntimeError:  # it has no such entry
            options.add_session_config_entry(SPINNING, "0")
        make(session, source, options, *arguments, **others)

    module.InferenceSession.__init__ = make_patient
