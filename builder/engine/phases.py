# SPDX-License-Identifier: Apache-2.0
"""The phases of a build; contract/phases.py has those of rewriting."""

from __future__ import annotations

from padfree.contract.phases import Phases as Phases

STARTING = "TensorRT's start"
WAITING = "waiting for the model"  # which another process prepares
PARSING = "parser"
BUILDING = "TensorRT's build"
CHECKING = "look at the engine"
MEASURING = "timing of the engines"
REFERENCE = "waiting for onnxruntime's answers"  # which another process computes
COMPARING = "check of the engine's answers"
