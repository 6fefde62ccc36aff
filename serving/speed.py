# SPDX-License-Identifier: Apache-2.0
"""How fast the model is with texts, measured before anybody is served."""

from __future__ import annotations

from padfree.runtime import Runner, sample_values
from padfree.runtime.batching import Speed, with_own_first_tokens
from padfree.runtime.batching.speed import measure as measure_batches
from padfree.runtime.pool import DevicePool
from padfree.runtime.request import RaggedBatch, read_packed
from padfree.runtime.text import ServedModel

SAMPLE = "a " * 62


def measure(session: Runner, served_model: ServedModel, runs: int) -> Speed:
    """Runs samples of growing size, as `padfree.runtime.batching.speed` does.

    Args:
        session: runs the model.
        served_model: makes the samples.
        runs: how many are under way at once, on all devices; those on one device share it.
    """
    encoder = served_model.encoder()
    text = SAMPLE if served_model.inputs.template is None else ("a", SAMPLE)

    def sample(copies: int) -> RaggedBatch:
        encoded = encoder.encode([text] * copies)
        columns = {**served_model.inputs.columns(encoded), **sample_values(served_model.inputs.others, copies)}
        return with_own_first_tokens(read_packed(columns, encoded.seq_lens, session.metadata), session.metadata)

    devices = len(session.devices) if isinstance(session, DevicePool) else 1
    return measure_batches(session, sample, beside=max(1, runs // devices), devices=devices)
