# SPDX-License-Identifier: Apache-2.0
"""The first step of the text ensemble: texts in, token ids out, through Hugging Face tokenizers.

Input `text` is TYPE_STRING with dims [1], one text per sequence; `text_pair`, of the same kind, is the second text of
each (rerankers), and `truncate`, TYPE_BOOL, says about each whether it may be cut. All are optional for the server:
without `text` a request gets an error that says so, where the server's own would speak of a deadlock. Outputs are what
the encoder takes: ids, token types and positions under the encoder's names, TYPE_INT32 with dims [-1], right-padded
with zeros, and `seq_lens`, TYPE_INT32 with dims [1]; `truncated`, TYPE_BOOL with dims [1], says which texts were cut.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from .answers import Failure, Reply
from .aside import LARGE_BYTES, Aside
from .metrics import TOKENIZER_COUNTERS, Counters
from .parameters import TokenizerParameters
from .server import (
    check_numpy,
    check_outputs,
    check_response_cache,
    read_requests,
    response_senders,
    send_response,
    write_responses,
)
from .texts import Texts, TextTokenizer


class TokenizerModel:
    """Tokenises the texts of a call together, and large requests of it aside, so that the others do not wait for them.

    A request with bad texts gets an error of its own.
    """

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the tokenizer.

        Args:
            args: the server's description of the model and this instance.

        Raises:
            SessionError: parameters and file do not fit; the server shows the message and loads nothing.
        """
        check_numpy()
        config = json.loads(args["model_config"])
        check_response_cache(config)
        parameters = TokenizerParameters.from_config(config)
        folder = Path(args["model_repository"]) / args["model_version"]
        self._counters = Counters(args, TOKENIZER_COUNTERS)
        count_truncated = partial(self._counters.add, "padfree_truncated_texts_total")
        self._tokenizer = TextTokenizer(folder / parameters.tokenizer, parameters, count_truncated)
        check_outputs(config, self._tokenizer.outputs)
        self._aside = Aside(self._tokenizer)
        self._counters.start()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        """Answers every request, its token ids or an error: now, or, where there are large ones, as each is ready."""
        texts_of_requests = [self._tokenizer.read(request) for request in read_requests(requests)]
        large = [
            at
            for at, texts in enumerate(texts_of_requests)
            if isinstance(texts, Texts) and texts.size_bytes > LARGE_BYTES
        ]
        senders = response_senders(requests) if large else None
        if senders is None:
            answers = self._tokenizer.answer(texts_of_requests)
            self._counters.count_answers(answers)
            return write_responses(answers)
        # Senders cost a round trip each, and all requests of a call have to take the same way.
        small = [at for at in range(len(texts_of_requests)) if at not in large]
        for at in large:
            texts = texts_of_requests[at]
            assert isinstance(texts, Texts)
            self._aside.submit(texts, partial(self._send, senders[at]))
        for at, answer in zip(small, self._answers([texts_of_requests[at] for at in small]), strict=True):
            self._send(senders[at], answer)
        return None

    def _send(self, sender: Any, answer: Reply) -> None:
        self._counters.count_answers([answer])
        send_response(sender, answer)

    def _answers(self, texts_of_requests: list[Texts | Failure]) -> list[Reply]:
        try:
            return self._tokenizer.answer(texts_of_requests)
        except Exception as error:  # requests with a sender must be answered through it
            return [Failure(f"the texts could not be tokenised: {error!r}", is_refusal=False)] * len(texts_of_requests)

    def finalize(self) -> None:
        """Answers what is left, and takes the metrics off the server's page."""
        self._aside.close()
        self._counters.close()
