# SPDX-License-Identifier: Apache-2.0
"""The parser of the command: options of other tools, and misspelt ones, are answered with those that it has."""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MODEL = "the model, which stands first"
PEERS: Mapping[str, tuple[str, ...]] = {
    "--model": (MODEL,),
    "--model-id": (MODEL,),
    "--model-path": (MODEL,),
    "--model-name-or-path": (MODEL,),
    "--onnx": (MODEL,),
    "--batch-size": ("--max-batch", "--batch", "--max-texts"),
    "--max-batch-size": ("--max-batch", "--batch"),
    "--max-client-batch-size": ("--max-texts",),
    "--max-batch-tokens": ("--max-tokens", "--max-waiting-tokens"),
    "--max-num-batched-tokens": ("--max-tokens", "--max-waiting-tokens"),
    "--max-length": ("--max-seq-len",),
    "--max-seq-length": ("--max-seq-len", "--max-length"),
    "--max-model-len": ("--max-seq-len", "--max-length"),
    "--sequence-length": ("--max-seq-len", "--max-length"),
    "--dtype": ("--precision",),
    "--torch-dtype": ("--precision",),
    "--fp16": ("--precision",),
    "--bf16": ("--precision",),
    "--fp8": ("--precision",),
    "--auto-truncate": ("--truncate", "--long-texts"),
    "--tokenizer-name": ("--tokenizer",),
    "--served-model-name": ("--name",),
    "--hostname": ("--host",),
    "--tensor-parallel-size": ("--gpus",),
    "--output-dir": ("--output",),
    "--save-engine": ("--output",),
}
"""Options of text-embeddings-inference, vLLM, optimum, sentence-transformers and trtexec: what is ours, the first that
the subcommand has."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors name options that exist."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse; what a subcommand does not know is named by it, before what it lacks."""
        if args is not None:
            self._check_options(args)
        return super().parse_known_args(args, namespace)

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuses options that are another tool's or nearly ours. Those that are neither are left to argparse."""
        if self._subparsers is not None:
            return  # its subcommands look at their own
        for word in _options(words):
            if any(known.startswith(word) for known in self._option_string_actions):
                continue  # argparse takes beginnings
            ours = self.ours(word)
            if ours is not None:
                self.error(f"unrecognized option {word}; did you mean {ours}?")

    def ours(self, option: str) -> str | None:
        """What this command has instead of an option that it has not; None: nothing."""
        known = list(self._option_string_actions)
        for candidate in PEERS.get(option.replace("_", "-"), ()):
            if candidate in known or (candidate == MODEL and self._takes_model()):
                return candidate
        near = difflib.get_close_matches(option.replace("_", "-"), known, 1, 0.8)
        return near[0] if near else None

    def _takes_model(self) -> bool:
        return any(action.dest in ("model", "original") for action in self._actions if not action.option_strings)


def _options(words: Sequence[str]) -> Iterator[str]:
    """The options among words, without their values."""
    for word in words:
        if word == "--":
            return
        name = word.partition("=")[0]
        if re.fullmatch(r"--[A-Za-z][\w-]*", name):
            yield name
