# SPDX-License-Identifier: Apache-2.0
"""The model that serves an engine, or a rewritten .onnx file, in Triton's Python backend.

`items` describes the tensors of a request. In config.pbtxt, which also holds the `parameters`, token inputs are
TYPE_INT32 with dims [-1] and allow_ragged_batch, so that the server puts requests of any lengths into one call;
`seq_lens` is TYPE_INT32 with dims [1], optional. bfloat16 outputs leave as TYPE_FP32.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from padfree.contract.names import is_onnx

from ..batching.costs import read_costs
from ..budget import Budget
from ..errors import SessionError
from ..session import Session
from .answers import Answerer, Failure, cheapest, first_come
from .metrics import Metrics
from .parameters import PREFIX, EncoderParameters
from .server import (
    check_numpy,
    check_outputs,
    check_response_cache,
    client_of,
    read_requests,
    response_senders,
    send_response,
    write_responses,
)
from .sharing import RUNS, Caller, Sharing

TOO_OLD = Failure(
    f"'{PREFIX}fair_share' needs a server from 24.06 on; take it out of config.pbtxt, or update the server",
    is_refusal=False,
)


class EncoderModel:
    """Packs the requests of a call into as few runs as the token budget allows, or into the cheapest ones.

    A request that does not fit the model gets an error of its own; the others of its call are served. All answers of a
    call are returned together: sending each by itself (InferenceResponseSender) takes a round trip to the server's
    process, which costs more than the wait that it saves. For the same reason only requests that take several runs are
    asked, between these, whether they were cancelled; the server drops cancelled requests that still wait in its queue.

    With `padfree_fair_share` none of this holds: clients share the model, each request is answered by itself, and
    those that wait are asked about (`sharing`).
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the model file.

        Args:
            args: the server's description of the model and this instance.

        Raises:
            SessionError: parameters, file and machine do not fit; the server shows the message and loads nothing.
        """
        check_numpy()
        config = json.loads(args["model_config"])
        check_response_cache(config)
        parameters = EncoderParameters.from_config(config)
        folder = Path(args["model_repository"]) / args["model_version"]
        file = folder / parameters.model
        on_gpu = args["model_instance_kind"] == "GPU"
        if not is_onnx(file) and not on_gpu:
            raise SessionError(
                f"{file.name} is a plan, and this instance is of kind KIND_{args['model_instance_kind']}, allowed: "
                "KIND_GPU; correct instance_group in config.pbtxt"
            )
        self._session = Session(
            file,
            device=int(args["model_instance_device_id"]) if on_gpu else 0,
            allow_other_gpu=parameters.allow_other_gpu,
            cuda_graphs=parameters.cuda_graphs,
            contexts=RUNS if parameters.fair_share else 1,  # otherwise calls of one instance come one after the other
        )
        check_outputs(config, [item.name for item in self._session.metadata.outputs])
        self._metrics = Metrics(args)
        budget = narrow(self._session.budget, parameters)
        plan = cheapest(read_costs(folder / parameters.costs), budget) if parameters.costs else first_come(budget)
        self._answerer = Answerer(self._session, plan, self._metrics.count_run)
        self._client = parameters.client
        self._sharing: Sharing | None = None
        if parameters.fair_share:
            self._sharing = Sharing(
                self._session,
                budget,
                parameters.max_waiting_tokens,
                self._metrics.count_run,
                lambda answer, seconds: self._metrics.count_call([answer], seconds),
            )
        self._metrics.start()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answers every request, its outputs or an error: now, or, where clients share the model, when it is ready."""
        if self._sharing is not None:
            return self._share(self._sharing, requests)
        begin = time.perf_counter()
        answers = self._answerer.answer(read_requests(requests))
        self._metrics.count_call(answers, time.perf_counter() - begin)
        return write_responses(answers)

    def _share(self, sharing: Sharing, requests: Sequence[Any]) -> list[Any] | None:
        senders = response_senders(requests)
        if senders is None:
            return write_responses([TOO_OLD] * len(requests))
        for request, message, sender in zip(requests, read_requests(requests), senders, strict=True):
            client = client_of(request, self._client)
            sharing.submit(message, Caller(client, partial(send_response, sender), sender.is_cancelled))
        return None

    def finalize(self) -> None:
        """Answers what waits, frees the engine, and takes the metrics off the server's page."""
        if self._sharing is not None:
            self._sharing.close()
        self._session.close()
        self._metrics.close()


def narrow(budget: Budget, parameters: EncoderParameters) -> Budget:
    """The session's budget, made smaller by the parameters.

    Raises:
        SessionError: a parameter is larger than what the plan's profile takes.
    """
    limits: dict[str, int | None] = {}
    for name in ("max_tokens", "max_sequences"):
        parameter, limit = getattr(parameters, name), getattr(budget, name)
        if limit is not None and parameter > limit:
            raise SessionError(
                f"'{PREFIX}{name}' is {parameter}, allowed: at most {limit}, which one run of this model takes; "
                "correct config.pbtxt, or build the engine for more"
            )
        limits[name] = parameter or limit
    return Budget(**limits, counts_padding=budget.counts_padding)
