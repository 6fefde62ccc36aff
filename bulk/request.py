# SPDX-License-Identifier: Apache-2.0
"""What a user asks for, and what the model makes of it: the options of a manifest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from padfree.contract.late_interaction import DOCUMENT
from padfree.contract.metadata import Metadata
from padfree.contract.names import is_onnx
from padfree.contract.texts import LATE, OUTPUTS
from padfree.runtime import Budget
from padfree.runtime.text import (
    ANSWERS,
    CLASSIFY,
    EMBED,
    RERANK,
    SPARSE,
    TOKENS,
    Choices,
    ServedModel,
    describe,
    prompt_advice,
)

from .errors import BulkError
from .manifest import OPTION_NAMES, Model, Options
from .models import identify, look

SHARD_ROWS, CPU_SHARD_ROWS, TOKEN_SHARD_ROWS = 1 << 16, 1 << 10, 1 << 9
"""Rows of a shard, where rows have one vector, on a GPU and on a CPU, and where tokens have one."""
MOST_TEXT_BYTES = 1 << 18


@dataclass(frozen=True)
class Request:
    """What is asked for; None: what the model says, or the default.

    Attributes:
        inputs: files, folders, URIs.
        output: the folder of the result.
        model: the plan or packed file.
        columns: those of the text, or of the two texts of a pair; None, for one or both of a pair: as the inputs
            spell them.
        id_column: the column of ids; None: rows are numbered.
        head: the model's output.
        tokenizer: the tokenizer.json.
        prompt: the name of one of the model's prompts.
        max_length: most tokens of a text or pair.
        dtype: the result's type.
        max_text_bytes: larger texts are bad rows.
        shard_rows: rows of a shard.
        max_tokens: tokens of a batch.
        max_sequences: texts of a batch.
    """

    inputs: Sequence[str]
    output: str
    model: Path
    columns: tuple[str | None, ...] | None = ("text",)
    id_column: str | None = None
    head: str | None = None
    tokenizer: Path | None = None
    prompt: str | None = None
    max_length: int | None = None
    dtype: str = "float32"
    max_text_bytes: int = MOST_TEXT_BYTES
    shard_rows: int | None = None
    max_tokens: int | None = None
    max_sequences: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_length", "max_text_bytes", "shard_rows", "max_tokens", "max_sequences"):
            value = getattr(self, name)
            if value is not None and value < 1:
                option = OPTION_NAMES[name]
                raise BulkError(f"{option} {value}: allowed: 1 or more; leave it out for the default")


def resolve_request(request: Request) -> tuple[ServedModel, Options, Model]:
    """What the request, whose columns are known, and the model say together.

    Raises:
        BulkError: the model is for another command, or has no such prompt, or batches are larger than it takes.
        padfree.runtime.SessionError: the model or its tokenizer cannot be used.
    """
    metadata, budget = look(request.model)
    pairs = len(_columns(request)) > 1
    choices = Choices(
        task=_task_of_head(request.head, metadata, pairs),
        output=request.head,
        tokenizer=request.tokenizer,
        max_length=request.max_length,
        token_rows=not pairs,
        output_option="--head",
        task_option=None,
    )
    served_model = describe(request.model, metadata, choices)
    if pairs and served_model.late is not None and served_model.inputs.others:
        raise BulkError(
            f"{request.model}: compares vectors of tokens, and reads {', '.join(served_model.inputs.unfilled)} beside "
            "texts, which a query and its document would both need; export the model without that"
        )
    fitting = (
        (RERANK, CLASSIFY) if pairs else (EMBED, SPARSE, TOKENS, *([] if served_model.takes_pairs else [CLASSIFY]))
    )
    if served_model.task not in fitting:
        command, other = ("rerank", "embed") if pairs else ("embed", "rerank")
        raise BulkError(
            f"{request.model}: its output '{served_model.output}' is for the task '{served_model.task}', which is not "
            f"for padfree {command}; call padfree {other}, or choose another output with --head"
        )
    if request.prompt is not None and request.prompt not in served_model.prompts:
        raise BulkError(f"--prompt {request.prompt}: {prompt_advice(served_model.prompts)}")
    _check_batches(request, budget)
    return (
        served_model,
        _options(request, served_model, budget),
        identify(request.model, served_model.tokenizer.content),
    )


def _columns(request: Request) -> tuple[str, ...]:
    return cast(tuple[str, ...], request.columns)  # embed has asked the inputs


def _task_of_head(head: str | None, metadata: Metadata, pairs: bool) -> str | None:
    """What an output is for that the user names; None: the model tells."""
    is_late = metadata.text is not None and metadata.text.late is not None
    if head in (None, *ANSWERS) or (is_late and head == OUTPUTS[LATE]):
        return None
    if not pairs:
        return EMBED
    shape = next((item.shape for item in metadata.outputs if item.name == head), None)
    return RERANK if not shape or shape[-1] in (1, None) else CLASSIFY


def _check_batches(request: Request, budget: Budget) -> None:
    limits = {"tokens": (request.max_tokens, budget.max_tokens), "texts": (request.max_sequences, budget.max_sequences)}
    for what, (value, most) in limits.items():
        if value is not None and most is not None and value > most:
            raise BulkError(f"batches of {value} {what}, the model takes {most}; pass {most} or less")


def _options(request: Request, served_model: ServedModel, budget: Budget) -> Options:
    of_vectors = CPU_SHARD_ROWS if is_onnx(request.model) else SHARD_ROWS
    rows = TOKEN_SHARD_ROWS if served_model.has_token_rows else of_vectors
    return Options(
        task=served_model.task,
        head=served_model.output,
        columns=_columns(request),
        id_column=request.id_column,
        prompt=_prompt(request, served_model),
        max_length=served_model.max_length,
        dtype=request.dtype,
        max_text_bytes=request.max_text_bytes,
        shard_rows=request.shard_rows or rows,
        max_tokens=request.max_tokens or budget.max_tokens,
        max_sequences=request.max_sequences or budget.max_sequences,
        truncation_side=served_model.tokenizer.truncation_side,
        token_types=bool(served_model.tokenizer.token_types),
        values=tuple(item.original_name for item in served_model.inputs.others),
    )


def _prompt(request: Request, served_model: ServedModel) -> str:
    """What is put in front of texts; where tokens have vectors, what texts are: "query" or "document"."""
    if served_model.late is not None:
        return request.prompt or served_model.default_prompt or DOCUMENT
    return served_model.prompt(request.prompt)
