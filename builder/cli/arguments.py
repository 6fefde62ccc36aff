# SPDX-License-Identifier: Apache-2.0
"""The parser of the command: options of other tools, and misspelt ones, are answered with those that it has."""

from __future__ import annotations

import argparse
import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

EXIT_USAGE = 2
MODEL = "the model, which stands first"
SIMILAR_OPTIONS: Mapping[str, tuple[str, ...]] = {
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
"""Options of text-embeddings-inference, vLLM, optimum, sentence-transformers and trtexec -> ours; the first that a
subcommand has is named."""
MAKING = ("--precision", "--pooling", "--normalize", "--no-normalize", "--interface", "--mask")
"""Options that say how a model is made: commands that only run one do not have them."""
COMMANDS: Mapping[str, str] = {
    "benchmark": "bench",
    "compile": "build",
    "convert": "optimize",
    "encode": "embed",
    "export": "optimize",
    "infer": "run",
    "info": "inspect",
    "predict": "run",
    "server": "serve",
}
"""Other tools' names for subcommands -> ours."""
BATCH_SIZES = ("--batch-size", "--max-batch-size", "--per-device-eval-batch-size")
"""Other tools' options that our commands, which form batches by tokens, do without."""
SWITCHES: Mapping[str, bool] = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
"""Values of variables that stand for options without a value."""
SERVICE_ADDRESS = re.compile(r"tcp://\S+")
"""What Kubernetes puts into PADFREE_PORT where a Service is called padfree."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors name options that exist.

    Attributes:
        variables: arguments that environment variables may set, by the variables' names.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.variables: dict[str, argparse.Action] = {}
        super().__init__(*args, **kwargs)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse's, but a subcommand names arguments that it does not know before those that it lacks."""
        if args is not None:
            self._check_options(args)
            self._take_variables(args)
        values, strange = super().parse_known_args(args, namespace)
        if strange and self._subparsers is None:  # otherwise named without its subcommand
            self.error(f"unrecognized arguments: {' '.join(strange)}; remove them")
        return values, strange

    def error(self, message: str) -> NoReturn:
        """Says what is wrong and where all arguments are listed, without the usage, which may fill a screen."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n{self.prog} --help lists all arguments\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As argparse's; a subcommand that does not exist is answered with the one that was meant."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = list(action.choices)
            near = [COMMANDS[value]] if value in COMMANDS else difflib.get_close_matches(value, names, 1)
            self.error(
                f"unknown subcommand {value!r}; "
                + (f"did you mean {near[0]}?" if near else f"allowed: {', '.join(names)}")
            )
        super()._check_value(action, value)

    def add_variables(self, prefix: str) -> None:
        """Lets an environment variable set every argument that has been added: PREFIX_MAX_TEXTS for --max-texts.

        Options win over variables; one that may be repeated takes both. Help names the variables.
        """
        for action in self._actions:
            if action.dest != "help":
                variable = f"{prefix}_{action.dest.upper()}"
                self.variables[variable] = action
                action.help = f"{action.help} [{variable}]"

    def _take_variables(self, words: Sequence[str]) -> None:
        """Makes the values of variables the defaults of their arguments. Empty variables count as not set."""
        actions = {name: action for name, action in self.variables.items() if os.environ.get(name)}
        for group in self._mutually_exclusive_groups:
            names = [name for name, action in actions.items() if action in group._group_actions]
            if any(self._is_given(action, words) for action in group._group_actions):
                for name in names:
                    del actions[name]
            elif len(names) > 1:
                self.error(f"{' and '.join(names)} are set, and exclude each other; unset one of them")
        for name, action in actions.items():
            action.default = self._value_of_variable(name, action, os.environ[name])
            action.required = False
            if not action.option_strings:
                action.nargs = argparse.OPTIONAL
        self.set_defaults(from_environment={action.dest: name for name, action in actions.items()})

    def _is_given(self, action: argparse.Action, words: Sequence[str]) -> bool:
        """Whether an option is among words, perhaps by its beginning, as argparse takes it."""
        option_words = list(_options(words))
        return any(option.startswith(word) for option in action.option_strings for word in option_words)

    def _value_of_variable(self, name: str, action: argparse.Action, text: str) -> Any:
        if action.nargs == 0:
            if text.lower() not in SWITCHES:
                self.error(f"{name} is {text!r}, allowed: {', '.join(SWITCHES)}; correct it, or unset it")
            return SWITCHES[text.lower()]
        try:
            value = self._get_value(action, text)
            self._check_value(action, value)
        except argparse.ArgumentError as error:
            why = " (Kubernetes sets it for a Service of that name; enableServiceLinks: false turns that off)"
            hint = why if SERVICE_ADDRESS.fullmatch(text) else ""
            self.error(f"{name}: {error.message}; correct it, or unset it{hint}")
        return [value] if isinstance(action, argparse._AppendAction) else value

    def _check_options(self, words: Sequence[str]) -> None:
        """Refuses options that are another tool's or nearly ours. Those that are neither are left to argparse."""
        if self._subparsers is not None:
            return  # its subcommands look at their own
        for word in _options(words):
            if any(known_option.startswith(word) for known_option in self._option_string_actions):
                continue  # argparse takes beginnings
            ours = self.ours(word)
            if ours is not None:
                self.error(f"unrecognized option {word}; did you mean {ours}?")
            option = next(
                (name for name in (word, *SIMILAR_OPTIONS.get(word.replace("_", "-"), ())) if name in MAKING), None
            )
            if option is not None and self._takes_model():
                self.error(
                    f"unrecognized option {word}; the model is taken as it was made: padfree optimize {option}, or "
                    f"padfree build {option}, makes it so"
                )
            if word.replace("_", "-") in BATCH_SIZES:
                self.error(f"unrecognized option {word}; this command forms its batches by tokens itself: leave it out")

    def ours(self, option: str) -> str | None:
        """This command's option for another tool's or a misspelt one; None: it has none."""
        option_words = list(self._option_string_actions)
        for candidate in SIMILAR_OPTIONS.get(option.replace("_", "-"), ()):
            if candidate in option_words or (candidate == MODEL and self._takes_model()):
                return candidate
        near = difflib.get_close_matches(option.replace("_", "-"), option_words, 1, 0.8)
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
