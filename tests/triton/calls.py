# SPDX-License-Identifier: Apache-2.0
"""Calls to a server's models over HTTP and gRPC, many at once."""

from __future__ import annotations

import asyncio
import importlib
import json
import urllib.error
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.triton_server import TritonServer

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]
Answer = dict[str, Array] | Exception  # an error is an InferenceServerException

PROTOCOLS = ("http", "grpc")
AT_ONCE = 64


def rows(sequences: Sequence[Sequence[int]]) -> dict[str, Array]:
    """The token ids of one request: rows padded to the longest, and `seq_lens` where their lengths differ."""
    seq_lens = [len(sequence) for sequence in sequences]
    input_ids = np.zeros((len(sequences), max(seq_lens)), dtype=np.int32)
    for row, sequence in zip(input_ids, sequences, strict=True):
        row[: len(sequence)] = sequence
    if min(seq_lens) == max(seq_lens):
        return {"input_ids": input_ids}
    return {"input_ids": input_ids, "seq_lens": np.array(seq_lens, dtype=np.int32)[:, None]}


def texts(*values: str | bytes) -> Array:
    """Texts as a tensor."""
    encoded = [value.encode() if isinstance(value, str) else value for value in values]
    return np.array(encoded, dtype=object)[:, None]


def call_all(
    server: TritonServer, protocol: str, model: str, requests: Sequence[Tensors], outputs: Sequence[str]
) -> list[Answer]:
    """Sends all requests, AT_ONCE at a time, and returns the outputs of each, or its error."""
    return asyncio.run(_call_all(server, protocol, model, requests, outputs))


def call(server: TritonServer, protocol: str, model: str, tensors: Tensors, outputs: Sequence[str]) -> dict[str, Array]:
    """Sends one request; raises InferenceServerException."""
    (answer,) = call_all(server, protocol, model, [tensors], outputs)
    if isinstance(answer, Exception):
        raise answer
    return answer


def refusal(server: TritonServer, model: str) -> str:
    """Why a server does not load a model."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        server.post(f"v2/repository/models/{model}/load")
    return str(json.load(refused.value)["error"])


async def _call_all(
    server: TritonServer, protocol: str, model: str, requests: Sequence[Tensors], outputs: Sequence[str]
) -> list[Answer]:
    # Imported here, so that tests are collected, and then skipped, where there is no tritonclient.
    from tritonclient.utils import InferenceServerException, np_to_triton_dtype

    module = importlib.import_module(f"tritonclient.{protocol}")
    client: Any = importlib.import_module(f"tritonclient.{protocol}.aio").InferenceServerClient(server.url(protocol))
    room = asyncio.Semaphore(AT_ONCE)

    async def one(tensors: Tensors) -> Answer:
        inputs = []
        for name, array in tensors.items():
            tensor = module.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            inputs.append(tensor)
        wanted = [module.InferRequestedOutput(name) for name in outputs]
        async with room:
            try:
                reply = await client.infer(model, inputs, outputs=wanted)
            except InferenceServerException as error:
                return error
        return {name: reply.as_numpy(name) for name in outputs}

    try:
        return list(await asyncio.gather(*(one(tensors) for tensors in requests)))
    finally:
        await client.close()
