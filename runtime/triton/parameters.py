# SPDX-License-Identifier: Apache-2.0
"""The `parameters` of config.pbtxt that the models of this package read: names, defaults, allowed values.

Who writes a configuration fills in one of the classes and calls `to_strings`; the server hands the same strings back to
`from_config`. One parameter a field, named `padfree_` and the field; what has its default is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from padfree.contract.text_inputs import PROMPT_LENGTH
from padfree.contract.texts import RIGHT, SIDES

from ..errors import SessionError

PREFIX = "padfree_"
LONG_TEXTS = ("truncate", "refuse")
FLAGS = {"true": True, "false": False}

P = TypeVar("P", bound="_Parameters")


class _Parameters:
    """Reads and writes the fields of the dataclasses below."""

    def to_strings(self) -> dict[str, str]:
        """Parameter name -> `string_value`, for config.pbtxt; defaults are left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}  # type: ignore[arg-type]
        defaults = {item.name: item.default for item in fields(self)}  # type: ignore[arg-type]
        return {
            PREFIX + name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in values.items()
            if value != defaults[name]
        }

    @classmethod
    def from_config(cls: type[P], config: Mapping[str, Any]) -> P:
        """Reads the decoded model configuration that the server passes to `initialize`.

        Raises:
            SessionError: an unknown parameter with padfree's prefix, a missing one, or a value that is not allowed.
        """
        strings = {
            name.removeprefix(PREFIX): str(entry.get("string_value", ""))
            for name, entry in config.get("parameters", {}).items()
            if name.startswith(PREFIX)
        }
        fields_by_name = {item.name: item for item in fields(cls)}  # type: ignore[arg-type]
        for name in strings:
            if name not in fields_by_name:
                raise SessionError(
                    f"unknown parameter '{PREFIX}{name}', allowed: "
                    f"{', '.join(PREFIX + item for item in fields_by_name)}; correct config.pbtxt, or write the "
                    "repository again with padfree triton"
                )
        for name, item in fields_by_name.items():
            if name not in strings and item.default is MISSING:
                raise SessionError(
                    f"parameter '{PREFIX}{name}' is missing; add it to config.pbtxt, or write the repository again "
                    "with padfree triton"
                )
        return cls(**{name: _parse(fields_by_name[name].type, name, value) for name, value in strings.items()})


@dataclass(frozen=True)
class EncoderParameters(_Parameters):
    """What EncoderModel reads.

    Attributes:
        model: the plan (its .json beside it) or .onnx file, relative to the model's version folder.
        max_tokens: tokens of one run, counted with padding for padded models; 0: as many as the plan's profile takes.
        max_sequences: sequences of one run; 0: as many as the plan's profile takes.
        costs: a table of measured costs (`padfree costs`), relative to the model's version folder: calls are then cut
            into the runs that cost the least together, which padded plans gain from. Empty: first come, first served.
        cuda_graphs: capture packed engines in CUDA graphs. Off by default: a capture holds its call up, and batches
            under load have hundreds of sizes, more than graphs are kept.
        allow_other_gpu: run a plan that was built on another GPU model of the same compute capability.
        fair_share: clients share the model by tokens (`sharing`), instead of first come, first served by calls.
        client: the request parameter that names a client; requests without it are known by their correlation id, and
            those that have none either are one client.
        max_waiting_tokens: with fair_share, the tokens that may wait.
    """

    model: str
    max_tokens: int = 0
    max_sequences: int = 0
    costs: str = ""
    cuda_graphs: bool = False
    allow_other_gpu: bool = False
    fair_share: bool = False
    client: str = "client"
    max_waiting_tokens: int = 1 << 20

    def __post_init__(self) -> None:
        if self.fair_share and self.costs:
            raise SessionError(
                f"'{PREFIX}fair_share' does not go with '{PREFIX}costs': runs are then cut by whose turn it is; take "
                "one of them out of config.pbtxt"
            )
        if self.max_waiting_tokens < 1:
            raise SessionError(
                f"'{PREFIX}max_waiting_tokens' is {self.max_waiting_tokens}, allowed: 1 or more; correct config.pbtxt"
            )


@dataclass(frozen=True)
class TokenizerParameters(_Parameters):
    """What TokenizerModel reads.

    Attributes:
        max_length: the most tokens of one text (or pair of texts), special tokens included.
        tokenizer: the tokenizer.json, relative to the model's version folder.
        long_texts: what happens to longer texts: "truncate" cuts them, "refuse" answers with an error.
        max_text_bytes: the largest text, in bytes of UTF-8; larger ones are refused. The whole of a text is tokenised,
            however few of its tokens are kept: texts that are cut before have other tokens.
        max_request_bytes: the most that all texts of one request have together.
        vocabulary: the rows of the model's table: a tokenizer with larger ids is another model's; 0: not known.
        truncation_side: the end that longer texts lose: "right" or "left".
        token_types: whether texts have token types; otherwise these are zeros.
        prompt: what is put in front of single texts.
        pairs: whether single texts are refused: the model scores pairs.
        ids: the encoder's name for ids.
        types: its name for token types.
        positions: its name for positions.
        prompt_length: its name for the number of a prompt's tokens.
        template: what the model wants around pairs, as JSON; "": what the tokenizer puts there.
    """

    max_length: int
    tokenizer: str = "tokenizer.json"
    long_texts: str = "truncate"
    max_text_bytes: int = 1 << 16
    max_request_bytes: int = 1 << 20
    vocabulary: int = 0
    truncation_side: str = RIGHT
    token_types: bool = True
    prompt: str = ""
    pairs: bool = False
    ids: str = "input_ids"
    types: str = "token_type_ids"
    positions: str = "position_ids"
    prompt_length: str = PROMPT_LENGTH
    template: str = ""

    def __post_init__(self) -> None:
        for name in ("max_text_bytes", "max_request_bytes"):
            if getattr(self, name) < 1:
                raise SessionError(
                    f"'{PREFIX}{name}' is {getattr(self, name)}, allowed: 1 or more; correct config.pbtxt, or leave "
                    "it out"
                )
        if self.max_length < 1:
            raise SessionError(
                f"'{PREFIX}max_length' is {self.max_length}, allowed: 1 or more; use the model's positions"
            )
        for name, choices in (("long_texts", LONG_TEXTS), ("truncation_side", SIDES)):
            value = getattr(self, name)
            if value not in choices:
                raise SessionError(
                    f"'{PREFIX}{name}' is {value!r}, allowed: {', '.join(choices)}; correct config.pbtxt"
                )


def _parse(kind: Any, name: str, text: str) -> Any:
    """A value of a field; annotations are strings here."""
    if kind == "bool":
        if text not in FLAGS:
            raise SessionError(f"'{PREFIX}{name}' is {text!r}, allowed: true, false; correct config.pbtxt")
        return FLAGS[text]
    if kind == "int":
        if not text.isdecimal():
            raise SessionError(f"'{PREFIX}{name}' is {text!r}, allowed: 0, 1, 2, ...; correct config.pbtxt")
        return int(text)
    if not text:
        raise SessionError(f"'{PREFIX}{name}' is empty; give it a value in config.pbtxt, or leave it out")
    return text
