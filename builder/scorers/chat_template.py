# SPDX-License-Identifier: Apache-2.0
"""A folder's chat template, or one that the user gives, as the text around a query and a document.

It is rendered in a process of its own, with marks for the two texts; where the marks appear in the result, the texts
belong.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from padfree.contract.templates import DOCUMENT, FIELDS, QUERY, Piece, Template
from padfree.contract.text_files import read_text
from tokenizers import Tokenizer

from ..errors import BuildError
from ..folders.objects import Entries
from . import rendering_process
from .known_scorers import BETWEEN, DEFAULT_INSTRUCTION, SYSTEM

FILE, SETTINGS, _KEY = "chat_template.jinja", "tokenizer_config.json", "chat_template"
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WAIT = 60  # seconds, on a machine that has much else to do
_MARKS = (("Mark1Query", "Mark2Document"), ("a Second mark, of a query?", "and the second mark of a document."))
_BLANKS = (" \n", "\n ")
"""Put around marks, to see whether a template strips it."""
_ADVICE = "pass --template with a text that has {query} and {document} where the two texts belong"


@dataclass(frozen=True)
class ChatTemplate:
    """A template in Jinja.

    Attributes:
        text: the template.
        source: what it was read from, for messages.
        specials: the tokenizer's own tokens, by their names in tokenizer_config.json.
    """

    text: str
    source: str
    specials: Mapping[str, str]

    @property
    def names_both(self) -> bool:
        """Whether it names queries and documents, as rerankers' templates do."""
        return all(re.search(rf"""["']{name}["']""", self.text) for name in FIELDS)

    def template(self, prompt: str = "") -> Template:
        """The text that it puts around two texts.

        Args:
            prompt: the system's message, for templates that name queries and documents.

        Raises:
            BuildError: it cannot be rendered, has no place for one of the two, or makes something else of texts.
        """
        first, second = _MARKS
        plain, other, around = self._texts(prompt)
        pieces = self._split(plain, first)
        if pieces != self._split(other, second):
            raise BuildError(f"{self.source}: makes other words of other texts around them; {_ADVICE}")
        return Template((tuple(self._trim(pieces, self._split(around, first))),))

    def _texts(self, prompt: str) -> Sequence[str]:
        """The texts that it makes of both pairs of marks, and of the first with blanks around them."""
        first, second = _MARKS
        blanks = (_BLANKS[0] + first[0] + _BLANKS[1], _BLANKS[0] + first[1] + _BLANKS[1])
        error = ""
        for as_list in (False, True) if self.names_both else (False,):  # contents may have to be lists of parts
            variables = [self._variables(*marks, prompt, as_list=as_list) for marks in (first, second, blanks)]
            answer = self._render(variables)
            texts = [text for text in answer["texts"] if text is not None]
            if len(texts) == len(variables) and (
                as_list or not self.names_both or all(mark in texts[0] for mark in first)
            ):
                return texts
            error = error or answer["error"]
        if not error:
            return texts
        raise BuildError(f"{self.source}: cannot be rendered ({ascii(error)[1:-1][:200]}); {_ADVICE}")

    def _variables(self, query: str, document: str, prompt: str, *, as_list: bool) -> dict[str, Any]:
        if self.names_both:
            texts = [(name, text) for name, text in (("system", prompt), (QUERY, query), (DOCUMENT, document)) if text]
        else:
            texts = [("system", SYSTEM), ("user", f"{DEFAULT_INSTRUCTION}{query}{BETWEEN}{document}")]
        messages = [
            {"role": role, "content": [{"type": "text", "text": text}] if as_list else text} for role, text in texts
        ]
        both = {"messages": messages, QUERY: query, DOCUMENT: document}
        return {**self.specials, **both, "add_generation_prompt": True, "enable_thinking": False, "tools": None}

    def _render(self, variables: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        program = [sys.executable or "python3", "-I", str(Path(rendering_process.__file__))]
        question = json.dumps({"template": self.text, "variables": variables})
        try:
            run = subprocess.run(program, input=question, capture_output=True, text=True, timeout=_WAIT, check=False)
            answer: dict[str, Any] = json.loads(run.stdout)
        except (subprocess.TimeoutExpired, ValueError):
            limits = f"{rendering_process.SECONDS} s or {rendering_process.BYTES >> 20} MiB"
            raise BuildError(f"{self.source}: takes more than {limits} to be rendered; {_ADVICE}") from None
        return answer

    def _split(self, text: str, marks: Sequence[str]) -> list[Piece]:
        template = text
        for name, mark in zip(FIELDS, marks, strict=True):
            if template.count(mark) != 1:
                times = "no place" if mark not in template else f"{template.count(mark)} places"
                raise BuildError(f"{self.source}: has {times} for the {name}; {_ADVICE}")
            template = template.replace(mark, f"\0{name}\0")
        parts = template.split("\0")
        return [Piece(field=item) if at % 2 else Piece(item) for at, item in enumerate(parts)]

    def _trim(self, pieces: Sequence[Piece], around: Sequence[Piece]) -> list[Piece]:
        """The pieces; fields that lose blanks at an end are marked."""
        losses: dict[int, list[str]] = {at: [] for at, piece in enumerate(pieces) if piece.field}
        for at in range(0, len(pieces), 2):
            ends = ("", _BLANKS[1]) if at else ("",)
            begins = ("", _BLANKS[0]) if at + 1 < len(pieces) else ("",)
            text, bare = pieces[at].text, around[at].text
            separators = [(end, begin) for end in ends for begin in begins if end + text + begin == bare]
            if not separators:
                raise BuildError(f"{self.source}: makes other words of blanks around texts; {_ADVICE}")
            end, begin = separators[0]
            if at and not end:
                losses[at - 1].append("right")
            if at + 1 < len(pieces) and not begin:
                losses[at + 1].append("left")
        fields = {at: Piece(field=pieces[at].field, trims=tuple(sorted(sides))) for at, sides in losses.items()}
        return [fields.get(at, piece) for at, piece in enumerate(pieces) if piece.field or piece.text]


def chat_template(folder: Path) -> ChatTemplate | None:
    """A folder's chat template, as transformers finds it; None: it has none.

    Raises:
        BuildError: a file cannot be read, or holds something else.
    """
    specials, file = special_tokens(folder), folder / FILE
    if file.is_file():
        return ChatTemplate(read_text(file, BuildError, "download the model again"), str(file), specials)
    entries = Entries(folder / SETTINGS)
    template = entries.raw.get(_KEY)
    if isinstance(template, list):  # several, by their names
        templates = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template = templates.get("default")
    if template is None:
        return None
    if not isinstance(template, str):
        raise entries.wrong(_KEY, "a template")
    return ChatTemplate(template, f"{entries.file}, '{_KEY}'", specials)


def special_tokens(folder: Path) -> dict[str, str]:
    """The tokenizer's own tokens, by their names in tokenizer_config.json."""
    raw = Entries(folder / SETTINGS).raw
    tokens = {name: raw.get(name) for name in _SPECIALS}
    contents = {name: item.get("content") if isinstance(item, dict) else item for name, item in tokens.items()}
    return {name: item for name, item in contents.items() if isinstance(item, str)}


def parse_template_option(text: str, folder: Path, tokenizer: Tokenizer) -> Template:
    """What --template says: a text with {query} and {document}, or a template in Jinja.

    A text gets the tokens around it that the tokenizer puts around texts; Jinja writes them itself, as in transformers.

    Raises:
        BuildError: it has no place for one of the two.
    """
    if "{{" in text or "{%" in text:
        return ChatTemplate(text, "--template", special_tokens(folder)).template()
    template = Template.of_text(text.removesuffix("\n"))
    for name in template.missing():
        raise BuildError(
            f"--template {text[:60]!a}: has no place for the {name}, or several; write {{query}} and {{document}} "
            "once each, where the two texts belong"
        )
    begin, end = _frame(tokenizer)
    return Template((*((Piece(item),) for item in begin), *template.parts, *((Piece(item),) for item in end)))


def _frame(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """The special tokens that a tokenizer puts before a text, and after it."""
    try:
        encoding = tokenizer.encode("a")
    except Exception:  # the library raises plain Exception; of tokenizers without a token for unknown words
        return [], []
    words = [at for at, special in enumerate(encoding.special_tokens_mask) if not special] or [len(encoding)]
    return encoding.tokens[: words[0]], encoding.tokens[words[-1] + 1 :]
