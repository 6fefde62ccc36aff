# SPDX-License-Identifier: Apache-2.0
"""What a model does with texts: its task, the output that answers it, and how texts become its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from padfree.contract import texts as contract
from padfree.contract.late_interaction import LateInteraction
from padfree.contract.metadata import Metadata, OutputInfo

from ..errors import SessionError
from .encoder import TextEncoder
from .inputs import TextInputs
from .pairs import prompt_advice
from .source import text_source
from .tokenizer_file import TokenizerFile

EMBED, RERANK, CLASSIFY, SPARSE, TAG = "embed", "rerank", "classify", "sparse", "tag"
TASKS = (EMBED, RERANK, CLASSIFY, SPARSE, TAG)
TOKENS = "tokens"
"""The task of outputs with a row per token, if the caller asks for such rows."""
ANSWERS = (contract.OUTPUTS[contract.SENTENCES], contract.OUTPUTS[contract.PAIRS], "logits")
"""Names of outputs that answer a task; others have to be named by the user."""
_QUERIES, _DOCUMENTS = ("query", "search_query"), ("document", "passage", "search_document", "corpus")


@dataclass(frozen=True)
class Choices:
    """What the user says about the model; for what is None or empty, the model's own metadata count.

    Attributes:
        task: one of TASKS.
        output: the name of the output that answers it.
        tokenizer: the tokenizer.json.
        max_length: most tokens of a text, or a pair.
        prompts: name -> what is put in front of texts.
        default_prompt: the name of the prompt for callers that name none.
        name: what the model is called.
        token_rows: whether an output with a row per token, not one per text, may answer; its task is TOKENS.
        tags: whether an output with labels of words may answer; its task is TAG.
        output_option: what the user calls `output`, for messages.
        task_option: likewise for `task`; None: the user is not asked for it.
    """

    task: str | None = None
    output: str | None = None
    tokenizer: Path | None = None
    max_length: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    name: str | None = None
    token_rows: bool = False
    tags: bool = False
    output_option: str = "--output"
    task_option: str | None = "--task"


@dataclass(frozen=True)
class ServedModel:
    """A model as its callers see it.

    Attributes:
        name: what callers call it.
        task: one of TASKS, or TOKENS.
        output: the output that answers it, with a row per text, or, for TOKENS and TAG, a row per token.
        pooling: how the output was made from rows of tokens; "" if that is not known.
        activated: whether scores are probabilities already; otherwise they are logits.
        precision: the model's.
        tokenizer: the tokenizer, with what its file held when it was checked: whoever makes tokens later takes these
            bytes, for the file may be another one by then.
        inputs: the model's inputs that are made from texts.
        takes_pairs: whether texts come in pairs.
        max_length: most tokens of a text, or a pair.
        prompts: name -> what is put in front of texts.
        default_prompt: the name of the prompt for callers who name none.
        labels: names of the classes.
        problem: whether a text has one label, several, or a number; one of TextInfo's PROBLEMS, or "".
        late: how queries and documents are read, if `output` has a vector for every token. RERANK then compares these.
    """

    name: str
    task: str
    output: str
    pooling: str
    activated: bool
    precision: str
    tokenizer: TokenizerFile = field(repr=False)
    inputs: TextInputs
    takes_pairs: bool
    max_length: int
    prompts: Mapping[str, str]
    default_prompt: str | None
    labels: tuple[str, ...]
    problem: str = ""
    late: LateInteraction | None = None

    @property
    def has_token_rows(self) -> bool:
        """Whether the output has a row per token, not one per text."""
        return self.task in (TOKENS, TAG) or self.late is not None

    @property
    def refuses_single_texts(self) -> bool:
        """As TextInfo's: whether the model cannot use texts by themselves."""
        return self.takes_pairs and self.problem != contract.REGRESSION

    def encoder(self) -> TextEncoder:
        """Makes tokens of texts, at most `max_length` per text, with the very tokenizer that was checked."""
        return self.tokenizer.encoder(self.max_length)

    def prompt(self, name: str | None) -> str:
        """The text of a prompt; of the default one where no name is given.

        Raises:
            KeyError: there is no such prompt.
        """
        prompt_name = self.default_prompt if name is None else name
        return "" if prompt_name is None else self.prompts[prompt_name]

    def prompt_for(self, kind: str) -> str | None:
        """The name of the model's prompt for queries or documents, which models call differently; None: it has none."""
        names = _QUERIES if kind in _QUERIES else _DOCUMENTS
        return next((name for name in names if name in self.prompts), None)


def describe(model: Path, metadata: Metadata, choices: Choices) -> ServedModel:
    """What a model file and the user's choices say together.

    Raises:
        SessionError: the task is not known, there is no such output, texts do not provide all inputs of the model, or
            the tokenizer is missing or another model's.
    """
    info = metadata.text or contract.TextInfo(contract.FEATURES)
    output = _output(metadata, choices)
    prompts = {**info.prompts, **choices.prompts}
    default = choices.default_prompt or info.default_prompt
    if default is not None and default not in prompts:
        raise SessionError(f"--default-prompt {default}: {prompt_advice(prompts)}")
    inputs = TextInputs(metadata, str(model))
    late = _late_of(metadata, output.name)
    if output.layout == "per_sequence":
        task = _task(model, output, info, choices.task)
    else:
        task = _task_of_tokens(choices) if late is None else _task_of_late(model, choices)
    source = text_source(model, metadata, choices.tokenizer, pairs=task == RERANK or info.takes_pairs)
    return ServedModel(
        name=choices.name or model.stem,
        task=task,
        output=output.name,
        pooling="_".join(info.pooling),
        activated=info.is_activated or late is not None,
        precision=metadata.precision,
        tokenizer=source,
        inputs=inputs,
        takes_pairs=info.takes_pairs,
        max_length=_max_length(metadata, choices, info.max_length, source),
        prompts=prompts,
        default_prompt=default,
        labels=info.labels,
        problem=info.problem,
        late=late,
    )


def _output(metadata: Metadata, choices: Choices) -> OutputInfo:
    """The output that answers, which has to have a row per text."""
    outputs = {item.name: item for item in metadata.outputs}
    output_names = ", ".join(outputs)
    answer_names = [name for name in ANSWERS if name in outputs]
    answer_names += [name for name in outputs if _late_of(metadata, name) is not None]
    if choices.output is not None and choices.output not in outputs:
        raise SessionError(
            f"{choices.output_option} {choices.output}: the model's outputs are {output_names}; choose one of them"
        )
    if choices.output is None and not answer_names:
        task = f" and {choices.task_option} {'|'.join(TASKS)}" if choices.task_option is not None else ""
        raise SessionError(
            f"the model's outputs are {output_names}, and none of these names tells what answers a text; build the "
            f"model with --pooling, or from its folder, or pass {choices.output_option} NAME{task}"
        )
    output = outputs[choices.output or answer_names[0]]
    if output.layout == "per_sequence" or (output.has_token_rows and _takes_token_rows(output, metadata, choices)):
        return output
    if output.unknown_size is not None:
        raise SessionError(
            f"'{output.name}' has no row per text, its size {output.unknown_size} follows from values; texts get "
            "vectors, scores or labels, and `padfree run` gives this output as it is"
        )
    tags = output.has_token_rows and output.name in ANSWERS and choices.tags
    raise SessionError(
        f"'{output.name}' has no row per text, its layout is '{output.layout}'; make the model with --pooling mean, "
        "or from its folder, which says how its vectors are made"
        + (f", or pass --task {TAG} if it has labels of words" if tags else "")
    )


def _takes_token_rows(output: OutputInfo, metadata: Metadata, choices: Choices) -> bool:
    """Whether rows of tokens may answer: rows of all tokens, or labels of words if the folder or the user says so."""
    is_named = metadata.text is not None and metadata.text.task == contract.TOKENS and output.name in ANSWERS
    is_late = _late_of(metadata, output.name) is not None
    return choices.token_rows or is_late or (choices.tags and (is_named or choices.task == TAG))


def _late_of(metadata: Metadata, output_name: str) -> LateInteraction | None:
    """How queries and documents are read, if this output has a vector for every token."""
    info = metadata.text
    return info.late if info is not None and output_name == contract.OUTPUTS[contract.LATE] else None


def _task_of_late(model: Path, choices: Choices) -> str:
    """The task of an output with a vector for every token: these, or the scores that they give.

    Raises:
        SessionError: the user asks for another one.
    """
    if choices.task not in (None, RERANK):
        raise SessionError(
            f"--task {choices.task}: {model} has a vector for every token, which is for {RERANK}; leave --task out"
        )
    return TOKENS if choices.token_rows else RERANK


def _task_of_tokens(choices: Choices) -> str:
    """The task of an output with a row per token.

    Raises:
        SessionError: the user asks for one that needs a row per text.
    """
    if choices.tags and choices.task not in (None, TAG):
        raise SessionError(f"--task {choices.task}: the model has labels of words; leave --task out, or pass {TAG}")
    return TAG if choices.tags else TOKENS


def _task(model: Path, output: OutputInfo, info: contract.TextInfo, choice: str | None) -> str:
    """The task of a model: from its folder, or from the output's name and shape, or else from the user.

    Raises:
        SessionError: the user asks for a task that the model does not have, or nothing says which it is.
    """
    width = output.shape[-1] if output.shape else None
    if info.task == contract.SPARSE:
        candidates: tuple[str, ...] = (SPARSE,)
    elif output.name == contract.OUTPUTS[contract.SENTENCES]:
        candidates = (EMBED, SPARSE) if not info.pooling else (EMBED,)
    elif output.name in ANSWERS:
        candidates = (RERANK, CLASSIFY) if width == 1 else (CLASSIFY,)
    else:
        candidates = ()
    if choice is None:
        if not candidates:
            raise SessionError(
                f"the name of output '{output.name}' does not tell what it is for; pass --task {'|'.join(TASKS)}"
            )
        return candidates[0]
    if candidates and choice not in candidates:
        raise SessionError(
            f"--task {choice}: '{output.name}' of {model} {_describe_width(output)}, which is for "
            f"{' or '.join(candidates)}; leave --task out, or serve a model that was made for it"
        )
    if choice == TAG:
        raise SessionError(
            f"--task {choice}: '{output.name}' of {model} has a row per text, and labels of words need a row per "
            f"token; pass --task {CLASSIFY} for labels of texts, or serve a model for words"
        )
    if choice == RERANK and width not in (1, None):
        raise SessionError(
            f"--task {choice}: '{output.name}' of {model} {_describe_width(output)}, and a reranker's has one number "
            f"per pair; pass --task {EMBED}, or serve a cross-encoder"
        )
    return choice


def _describe_width(output: OutputInfo) -> str:
    width = output.shape[-1] if output.shape else None
    return "has vectors" if width is None else f"has {width} number{'s' * (width != 1)} per text"


def _max_length(metadata: Metadata, choices: Choices, folder_length: int | None, source: TokenizerFile) -> int:
    longest, choice = metadata.longest, choices.max_length
    if choice is not None and choice < 1:
        raise SessionError(f"--max-length {choice}: allowed: 1 or more; leave it out for what the model takes")
    max_length = (
        choice
        if choice is not None
        else min((limit for limit in (folder_length, longest) if limit is not None), default=None)
    )
    if max_length is None:
        raise SessionError("the model sets no limit to a text's length; pass --max-length 512")
    if longest is not None and max_length > longest:
        raise SessionError(f"--max-length {max_length}: the model takes {longest} tokens; pass {longest} or less")
    specials = source.least_tokens()
    if max_length <= specials:
        raise SessionError(
            f"--max-length {max_length}: the tokenizer puts {specials} tokens of its own around a text; pass "
            f"{specials + 1} or more"
        )
    return max_length
