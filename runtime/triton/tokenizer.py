# SPDX-License-Identifier: Apache-2.0
"""The first step of the text ensemble: texts in, token ids out, through Hugging Face tokenizers.

Input `text` is TYPE_STRING with dims [1], one text a sequence; `text_pair`, optional and of the same kind, is the
second text of each (rerankers). Outputs are what the encoder takes: `input_ids` and `token_type_ids`, TYPE_INT32 with
dims [-1], right-padded with zeros, and `seq_lens`, TYPE_INT32 with dims [1].
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .parameters import TokenizerParameters
from .server import check_outputs, read_requests, write_responses
from .texts import OUTPUTS, TextTokenizer


class TokenizerModel:
    """Tokenises all texts of a call together; a request with bad texts gets an error of its own."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Opens the tokenizer.

        Args:
            args: the server's description of the model and this instance.

        Raises:
            SessionError: parameters and file do not fit; the server shows the message and loads nothing.
        """
        config = json.loads(args["model_config"])
        check_outputs(config, OUTPUTS)
        parameters = TokenizerParameters.from_config(config)
        folder = Path(args["model_repository"]) / args["model_version"]
        self._tokenizer = TextTokenizer(folder / parameters.tokenizer, parameters)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answers every request: its token ids, or an error."""
        return write_responses(self._tokenizer.answer(read_requests(requests)))
