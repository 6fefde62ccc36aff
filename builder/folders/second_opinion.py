# SPDX-License-Identifier: Apache-2.0
"""Compares a folder's model by its definition with transformers' own, where torch is installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import numpy as np
from padfree.onnx_tools.files import Storage, open_session

from ..errors import BuildError
from .definition import write_defined
from .export import inputs_of, is_known, load_by_transformers, outputs_of, without_prints
from .folder import Folder

LARGEST = 1e-3
"""In parts of an answer's norm, in float32: other orders of sums through all layers make 1e-6 to 1e-4."""
_LENGTHS = (17, 1, 6)
_SEED = 57
_LOWEST_ID = 5
"""Special tokens, among them perhaps padding, have smaller ids."""


def compare_with_transformers(folder: Folder, say: Callable[[str], object]) -> None:
    """Compares the definition's answers for random ids with those of transformers' model.

    Args:
        folder: its model has a definition.
        say: gets how far they are apart, or why nothing was compared.

    Raises:
        BuildError: they differ by more than rounding, so that one of the two is not the model of the folder.
    """
    if reason := _why_not(folder):
        say(f"{folder.path}: not compared with transformers, because {reason}")
        return
    import transformers

    try:
        with without_prints():
            off = _difference(folder)
    except BuildError as error:
        say(f"{folder.path}: not compared with transformers, because it does not load the folder ({error})")
        return
    release = f"transformers {transformers.__version__}"
    if not off < LARGEST:
        raise BuildError(
            f"{folder.path}: padfree's definition of it differs from {release} by {off:.2g} of an answer, allowed: "
            f"{LARGEST:g}; export the model with optimum-cli export onnx, give that file, and report the folder"
        )
    say(f"{folder.path}: padfree's definition agrees with {release} within {off:.1e} on {len(_LENGTHS)} random texts")


def _why_not(folder: Folder) -> str:
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return f"{' and '.join(missing)} are not installed"
    if folder.config.code:
        return "the folder refers to code of its own, which padfree does not run"
    if not is_known(folder.config.model_type):
        return f"it does not know the type {folder.config.model_type!r}"
    return ""


def _difference(folder: Folder) -> float:
    """The largest distance of two answers, divided by the norm of that of transformers."""
    import torch

    theirs, rng = load_by_transformers(folder), np.random.default_rng(_SEED)
    model = write_defined(folder).model(Storage.MAP)
    session, worst = open_session(model), 0.0
    words = folder.config.vocab_size or max(theirs.get_input_embeddings().weight.shape)
    output_names, names = outputs_of(folder), inputs_of(theirs, folder)
    for length in _LENGTHS:
        ids = rng.integers(min(_LOWEST_ID, words - 1), words, (1, length))
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        torch_inputs = {name: torch.from_numpy(feeds[name]) for name in names}
        with torch.no_grad():
            right = theirs(**torch_inputs)
        session_feeds = {item.name: feeds[item.name] for item in session.get_inputs()}
        for name, result in zip(output_names, session.run(list(output_names), session_feeds), strict=True):
            answer = right[name].numpy()
            worst = max(worst, float(np.linalg.norm(result - answer) / np.linalg.norm(answer)))
    model.weights.check_files()
    return worst
