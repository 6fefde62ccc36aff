# SPDX-License-Identifier: Apache-2.0
"""The server's requests and responses as `answers` describes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import triton_python_backend_utils as pb_utils

from ..errors import SessionError
from .answers import Answer, Failure, Request


def read_requests(requests: Sequence[Any]) -> list[Request]:
    """The tensors, valid until `execute` returns, and wanted outputs of every request."""
    return [
        Request({tensor.name(): tensor.as_numpy() for tensor in request.inputs()}, request.requested_output_names())
        for request in requests
    ]


def write_responses(answers: Sequence[Answer]) -> list[Any]:
    """What `execute` returns."""
    return [_response(answer) for answer in answers]


def check_outputs(config: Mapping[str, Any], known: Collection[str]) -> None:
    """Raises SessionError when the configuration lists an output that the model does not have."""
    for output in config["output"]:
        if output["name"] not in known:
            raise SessionError(
                f"config.pbtxt lists output '{output['name']}', allowed: {', '.join(known)}; correct it, or write the "
                "repository again with padfree triton"
            )


def _response(answer: Answer) -> Any:
    if isinstance(answer, Failure):
        code = pb_utils.TritonError.INVALID_ARG if answer.refused else pb_utils.TritonError.INTERNAL
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(answer.message, code))
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in answer.items()])
