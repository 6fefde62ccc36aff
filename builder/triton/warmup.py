# SPDX-License-Identifier: Apache-2.0
"""Warm-up requests: the server runs them before it calls a model ready, and refuses a model that fails them.

The first run of an engine loads its kernels and sizes its memory; without a warm-up a client would wait for that. A
sample of batch size N is N requests of one sequence each (core/src/backend_model_instance.cc, GenerateWarmupData).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from .config import protobuf, to_text
from .folder import ENCODER, Files, ModelFolder
from .serving import ServedModel
from .tensors import type_of

WARMUP_FOLDER = "warmup"  # the server looks for input_data_file here
SHORT = 8  # tokens
PLAIN_NAME = re.compile(r"[A-Za-z0-9_]{1,100}")


def add_warmup(config: Any, served_model: ServedModel) -> dict[str, bytes]:
    """Adds a short request, and for a plan the fullest batch of its profile.

    Returns:
        The data files that the requests read, by their path in the model's folder.
    """
    files, tokens = dict[str, bytes](), served_model.metadata.token_inputs()
    for name, sequences, length in samples(served_model):
        sample = config.model_warmup.add(name=name, batch_size=sequences)
        for number, item in enumerate((*tokens, *served_model.metadata.sequence_inputs())):
            values = sample.inputs[item.name]
            values.data_type = getattr(protobuf().DataType, type_of(item))
            values.dims.extend([length, *item.trailing_shape] if item in tokens else [item.width or 1])
            value = item.least_value if item in tokens else 0  # which every table of sequences' numbers has
            if value == 0:
                values.zero_data = True
            else:  # random_data would leave the vocabulary
                values.input_data_file = f"{_as_file(item.name, number)}_{length}"
                data = np.full(length, value, np.dtype("<i4")).tobytes()
                files[f"{WARMUP_FOLDER}/{values.input_data_file}"] = data
    return files


def encoder_folder(
    config: Any, served_model: ServedModel, version: Files, beside: Mapping[str, bytes] | None = None
) -> ModelFolder:
    """The folder of a model that is configured but for its warm-up; the other arguments are files of the folder."""
    warmup = add_warmup(config, served_model)
    return ModelFolder(version, {**(beside or {}), **warmup}, to_text(config), ENCODER, served_model.options.name)


def _as_file(name: str, number: int) -> str:
    """A file name for an input: names of tensors may hold slashes, and more."""
    return name if PLAIN_NAME.fullmatch(name) else f"input-{number}"


def samples(served_model: ServedModel) -> list[tuple[str, int, int]]:
    """(name, sequences, tokens each) of every warm-up batch."""
    longest = SHORT if served_model.metadata.longest is None else served_model.metadata.longest
    all_samples = [("one short sequence", 1, min(SHORT, longest))]
    if served_model.metadata.engine is not None:
        profile = served_model.metadata.engine.profile
        sequences = min(served_model.max_batch, profile.max_batch, profile.max_tokens)
        all_samples.append(("the fullest batch", sequences, min(longest, profile.max_tokens // sequences)))
    return all_samples
