# SPDX-License-Identifier: Apache-2.0
"""The server's requests and responses as `answers` describes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from ..errors import SessionError
from .answers import Failure, Reply, TritonRequest, never


def read_requests(requests: Sequence[Any]) -> list[TritonRequest]:
    """The tensors, valid until `execute` returns, and wanted outputs of every request."""
    return [
        TritonRequest(
            {tensor.name(): tensor.as_numpy() for tensor in request.inputs()},
            request.requested_output_names(),
            getattr(request, "is_cancelled", never),
        )
        for request in requests
    ]


def write_responses(answers: Sequence[Reply]) -> list[Any]:
    """What `execute` returns."""
    return [_response(answer) for answer in answers]


def check_outputs(config: Mapping[str, Any], names: Collection[str]) -> None:
    """Raises SessionError when the configuration lists an output that the model does not have."""
    for output in config["output"]:
        if output["name"] not in names:
            raise SessionError(
                f"config.pbtxt lists output '{output['name']}', allowed: {', '.join(names)}; correct it, or write the "
                "repository again with padfree triton"
            )


def check_numpy() -> None:
    """Fails where the server's backend cannot read this NumPy's arrays.

    Backends compiled before NumPy 2 load with it, and take every array for an empty one: models are ready, and every
    answer is wrong. A tensor that is handed to the backend and back shows it, whatever the versions.

    Raises:
        SessionError: the arrays do not come back as they were.
    """
    array = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    back = pb_utils.Tensor.from_dlpack("back", pb_utils.Tensor("sent", array).to_dlpack()).as_numpy()
    if not np.array_equal(array, back):
        raise SessionError(
            f"this server's Python backend cannot read arrays of NumPy {np.__version__}, with which every answer would "
            "be wrong; install one that it was compiled for into its Python: pip3 install 'numpy>=1.26,<2'"
        )


def response_senders(requests: Sequence[Any]) -> list[Any] | None:
    """What sends the answer of each request when `execute` has returned; None where the server is older than 24.06."""
    try:
        return [request.get_response_sender() for request in requests]
    except Exception:  # the stub's own kind, for models that are not decoupled
        return None


def send_response(sender: Any, answer: Reply) -> None:
    """Sends the one answer of a request."""
    sender.send(_response(answer), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def client_of(request: Any, parameter: str) -> Hashable:
    """Who sent a request: the value of its parameter, else its correlation id; None where it has neither."""
    client_name = json.loads(request.parameters() or "{}").get(parameter)
    return client_name or request.correlation_id() or None


def check_response_cache(config: Mapping[str, Any]) -> None:
    """Raises SessionError where the server's response cache would give answers that were not asked for.

    Its key is what a request's inputs hold: not their shapes, and not which outputs were asked for (core
    src/cache_manager.cc HashInputs).
    """
    outputs = [output["name"] for output in config["output"]]
    if config.get("response_cache", {}).get("enable") and len(outputs) > 1:
        raise SessionError(
            f"response_cache does not go with {len(outputs)} outputs ({', '.join(outputs)}): whoever asks for one of "
            "them would get what another request for the same tokens asked for; take response_cache out of "
            "config.pbtxt, or serve a model with one output"
        )


def _response(answer: Reply) -> Any:
    if isinstance(answer, Failure):
        code = pb_utils.TritonError.INVALID_ARG if answer.is_refusal else pb_utils.TritonError.INTERNAL
        if answer.busy:
            code = pb_utils.TritonError.UNAVAILABLE
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.message, code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in answer.items()])
