# SPDX-License-Identifier: Apache-2.0
"""/tag: words of texts with labels and offsets, as `padfree.Model.tag` and `padfree run` give them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import orjson
from padfree.runtime import bounds_of
from padfree.runtime.answers import Floats, TaggedSpan, join, words_of
from padfree.runtime.text import TAG
from starlette.routing import Route

from ..errors import validation_error
from .body import Body, read_texts
from .calls import Call, Calls
from .tei import error_body, truncates
from .texts import Texts, in_parts
from .vectors import floats

STRATEGIES = ("simple", "none")
"""Values of Hugging Face's `aggregation_strategy`: words that belong together are joined, or every word is separate."""

ToJson = Callable[[TaggedSpan], dict[str, Any]]


class Tags:
    """The routes.

    Args:
        calls: makes endpoints.
        texts: has the thread for large requests.
    """

    def __init__(self, calls: Calls, texts: Texts) -> None:
        self._calls, self._texts = calls, texts

    def routes(self) -> list[Route]:
        """Paths and endpoints; the root is that of Hugging Face's clients, where the model has labels of words."""
        works = {"/tag": self._tag}
        if self._calls.served_model.task == TAG:
            works["/"] = self._token_classification
        return self._calls.routes(works, error_body)

    async def _tag(self, call: Call) -> Any:
        return await self._answer(call, every_word=call.body.truth("words", False), to_json=asdict)

    async def _token_classification(self, call: Call) -> Any:
        """As the `token-classification` pipeline of transformers answers."""
        every_word = call.body.part("parameters").choice("aggregation_strategy", STRATEGIES) == "none"
        key = "entity" if every_word else "entity_group"
        return await self._answer(call, every_word=every_word, to_json=partial(_as_pipeline, key))

    async def _answer(self, call: Call, *, every_word: bool, to_json: ToJson) -> AsyncIterator[bytes]:
        texts, single = _read(call.body, self._calls)
        call.method = "single" if single else "batch"
        self._calls.check_task(TAG)
        truncate = truncates(self._calls, call.body)
        rows = floats(await self._calls.rows(call, texts, kind="predict", truncate=truncate))
        assert call.answer is not None
        bounds = bounds_of(call.answer.seq_lens).tolist()
        tag = partial(self._json, texts, rows, bounds, every_word=every_word, to_json=to_json)
        return self._parts(texts, rows, tag, single)

    async def _parts(
        self, texts: Sequence[str], rows: Floats, tag: Callable[[slice], bytes], single: bool
    ) -> AsyncIterator[bytes]:
        """The answer in parts; its rows count until it is read."""
        self._calls.row_bytes += rows.nbytes
        try:
            async for part in in_parts(texts, self._texts.aside, tag, brackets=not single):
                yield part
        finally:
            self._calls.row_bytes -= rows.nbytes

    def _json(
        self,
        texts: Sequence[str],
        rows: Floats,
        bounds: Sequence[int],
        part: slice,
        *,
        every_word: bool,
        to_json: ToJson,
    ) -> bytes:
        """Words of some texts, whose tokens' rows lie between the bounds, without the brackets around all of them."""
        items = []
        some = texts[part]
        for at, text, encoding in zip(range(len(texts))[part], some, self._texts.encodings(some), strict=True):
            words = words_of(text, encoding, rows[bounds[at] : bounds[at + 1]], self._calls.served_model.labels)
            items.append([to_json(word) for word in (words if every_word else join(text, words))])
        return orjson.dumps(items)[1:-1]


def _read(body: Body, calls: Calls) -> tuple[list[str], bool]:
    """Texts, and whether it was a single one."""
    value = body.raw("inputs")
    if isinstance(value, list) and any(isinstance(item, int | list) for item in value):
        raise validation_error("'inputs' has token ids, and words are found only in texts; send texts")
    single = isinstance(value, str)
    return read_texts([value] if single else value, "inputs", calls.options), single


def _as_pipeline(key: str, word: TaggedSpan) -> dict[str, Any]:
    return {key: word.label, "score": word.score, "word": word.text, "start": word.start, "end": word.end}
