# SPDX-License-Identifier: Apache-2.0
"""A tokenizer.json together with the settings that lie beside it, as AutoTokenizer takes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from padfree.contract.late_interaction import LateInteraction
from padfree.contract.templates import Template
from padfree.contract.texts import RIGHT

from ..errors import SessionError
from .encoder import TextEncoder
from .hazards import MOST_GROWTH, growth
from .json_files import WHAT_TO_GIVE, read_bytes, read_object, saved_object
from .late import LateEncoder
from .templates import TemplateEncoder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NAME, SETTINGS, MODEL = "tokenizer.json", "tokenizer_config.json", "config.json"
TYPES = "token_type_ids"


@dataclass(frozen=True)
class TokenizerFile:
    """A tokenizer as its folder says that it works.

    Attributes:
        path: the tokenizer.json, for messages.
        content: a tokenizer.json that works so by itself.
        truncation_side: the end that longer texts lose.
        token_types: whether texts have token types; None: nothing beside the file tells.
        notes: what to tell the user: where versions of transformers differ, which one is followed.
        types_notes: what to tell where pairs come, and the model reads token types.
        template: what the model wants around pairs.
        late: how queries and documents are read, if the model has a vector for every token.
    """

    path: Path
    content: bytes
    truncation_side: str = RIGHT
    token_types: bool | None = None
    notes: tuple[str, ...] = ()
    types_notes: tuple[str, ...] = ()
    template: Template | None = None
    late: LateInteraction | None = None

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, which pads nothing and cuts nothing."""
        return plain(parse(self.content, self.path))

    def encoder(self, most: int | None) -> TextEncoder:
        """What makes tokens of texts with it, at most so many of each."""
        types = self.token_types is not False
        side, template = self.truncation_side, self.template
        if self.late is not None:
            return LateEncoder((self.tokenizer(), self.tokenizer()), self.late, most, side=side, token_types=types)
        return TextEncoder(self.tokenizer(), most, side=side, token_types=types, template=template)

    def least_tokens(self) -> int:
        """How many tokens stand around an empty text, or around an empty pair in a template."""
        if self.template is not None:
            return TemplateEncoder(self.tokenizer(), self.template).least
        specials = int(self.tokenizer().num_special_tokens_to_add(False))
        return specials if self.late is None else specials + 1  # with a marker


def read_tokenizer_file(path: Path, settings: Path | None = None, rows: int | None = None) -> TokenizerFile:
    """Reads a tokenizer.json and what lies beside it.

    Args:
        path: the file; where it has another name, it is taken to lie beside no settings of its own.
        settings: the folder with tokenizer_config.json and config.json (default: that of the file).
        rows: rows of the model's table of ids, which limit the tokens that settings may add.

    Raises:
        SessionError: there is no such file, it holds no tokenizer, or a setting is one that padfree does not follow.
    """
    content = read_bytes(path)
    folder = settings or path.parent
    config, model = read_object(folder / SETTINGS), read_object(folder / MODEL)
    if (settings is None and path.name != NAME) or not (config or "model_type" in model):
        cut = saved_object(content, path).get("truncation") or {}
        return TokenizerFile(path, content, str(cut.get("direction", RIGHT)).lower())
    from .reading import Reading

    return Reading(path, content, folder, config, model, rows).result()


def parse(content: bytes, source: Path) -> Tokenizer:
    """The tokenizer in what a tokenizer.json holds; `source` is named in messages.

    Raises:
        SessionError: it holds no tokenizer, or one whose normalizers make texts too long for any memory.
    """
    from tokenizers import Tokenizer

    try:
        tokenizer: Tokenizer = Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises plain Exception
        raise SessionError(f"{source}: not a tokenizer file ({error}); {WHAT_TO_GIVE}") from error
    if (most := growth(tokenizer)) > MOST_GROWTH:
        raise SessionError(
            f"{source}: its normalizers may make {most:,} characters from one, allowed: {MOST_GROWTH:,}; {WHAT_TO_GIVE}"
        )
    return tokenizer


def plain(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer itself, which pads nothing and cuts nothing any more."""
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
