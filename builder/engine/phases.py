# SPDX-License-Identifier: Apache-2.0
"""Where a build's time goes, beside what contract/phases.py names of rewriting."""

from __future__ import annotations

from padfree.contract.phases import Phases as Phases

STARTING = "TensorRT's start"
WAITING = "waiting for the model"  # which is prepared meanwhile
PARSING = "parser"
BUILDING = "TensorRT's build"
CHECKING = "look at the engine"
REFERENCE = "waiting for onnxruntime's answers"  # which it gives meanwhile
COMPARING = "check of the engine's answers"
