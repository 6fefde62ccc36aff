# SPDX-License-Identifier: Apache-2.0
"""Option groups that several subcommands share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from padfree.builder.errors import BuildError
from padfree.contract.names import EIGHT_BITS, INTERFACES, MASKS, PRECISIONS, WHOLE
from padfree.contract.text_files import read_text

from .console import error_console, print_line
from .option_kinds import integer, number, parts_of, switch, word

if TYPE_CHECKING:
    from padfree.builder.folders.head import HeadOptions

LINEAR = ("auto", "padfree", "tensorrt")
NORMS = ("folded", "separate")
GPUS = ("a100", "h100", "h200", "l4", "l40s")


def add_rewrite_options(
    parser: argparse.ArgumentParser, *, precision: str | None, interface: str | None, repeatable: bool = False
) -> None:
    """--interface, --precision, --strict, --verify, --no-verify, --mask, --fix, --padding-id, --masks, and so on.

    Defaults None: taken from a model that is rewritten already. With `repeatable`, --precision may be given several
    times.
    """
    group = parser.add_argument_group("rewriting")
    group.add_argument(
        "--interface",
        choices=INTERFACES,
        default=interface,
        help="packed: tokens without padding and sequence lengths (default); padded: the original inputs and outputs; "
        "varseqlen: packed, with the inputs of NVIDIA's variable-length BERT engines",
    )
    default_text = precision or "fp16, or bf16 where fp16 cannot hold the numbers, or a rewritten model's own"
    again, action = ("; repeatable: an engine for each", "append") if repeatable else ("", "store")
    group.add_argument(
        "--precision",
        action=action,
        choices=(*PRECISIONS, *EIGHT_BITS),
        default=precision,
        help="fp8, int8: GEMMs in e4m3 or int8, everything else in fp16 or bf16, with --calibrate. Default: "
        f"{default_text}{again}",
    )
    switch(group, "--strict", "fail unless the whole model could be packed")
    _add_verify_options(group)
    add_mask_option(group)
    integer(
        group,
        "--padding-id",
        "ID",
        "for models that read padded slots: the id that the tokenizer pads with (default: 0 and 1 are tried, and "
        "the report says so)",
    )
    group.add_argument(
        "--masks",
        choices=MASKS,
        help="for the padded interface: any (default), or contiguous if no padding lies between the tokens of a row, "
        "so that attention with windows and biases by distance is packed too",
    )
    switch(
        group,
        "--shared-prefixes",
        "let texts of a batch that begin alike, as pairs with one query do, compute that part once; for models "
        "with causal attention that give out the last token's row, as Qwen3-Reranker",
    )


def _add_verify_options(group: argparse._ArgumentGroup) -> None:
    """--verify, --no-verify."""
    verify = group.add_mutually_exclusive_group()
    verify.add_argument(
        "--verify",
        choices=(WHOLE,),
        default=True,
        help="compare more: run long sequences through all layers (default: through one of those that differ only in "
        "weights), and where torch is installed, check a folder that padfree reads itself against transformers",
    )
    verify.add_argument(
        "--no-verify",
        dest="verify",
        action="store_false",
        default=True,
        help="skip both comparisons: of the rewritten model with the original, and of a new engine with that model",
    )


def add_mask_option(parser: argparse._ActionsContainer) -> None:
    """--mask, --fix."""
    word(
        parser,
        "--mask",
        "NAME",
        "the input that is the padding mask (1 at tokens, 0 at padding), if attention does not prove which input "
        "that is",
    )
    word(
        parser,
        "--fix",
        "NAME=NUMBER",
        "make an input a constant, such as the number of a task, and remove it from the result; repeatable for "
        "several inputs",
        action="append",
        default=[],
    )


def fixed_inputs(arguments: argparse.Namespace) -> dict[str, int | float]:
    """What --fix says.

    Raises:
        BuildError: no NAME=NUMBER, or a name that is given twice.
    """
    inputs: dict[str, int | float] = {}
    for text in arguments.fix:
        name, _, number = text.rpartition("=")
        try:
            value = int(number) if number.lstrip("+-").isdigit() else float(number)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value):
            raise BuildError(f"--fix {text}: allowed: NAME=NUMBER, such as task_id=1; correct it")
        if name in inputs:
            raise BuildError(f"--fix {text}: '{name}' is given twice; leave one of them out")
        inputs[name] = value
    return inputs


def add_revision_option(parser: argparse._ActionsContainer) -> None:
    """--revision, for models that are repositories of the hub."""
    word(
        parser,
        "--revision",
        "REV",
        "for a Hugging Face id: the branch, tag or commit to take (default: the newest)",
        default="",
    )


def add_head_options(parser: argparse.ArgumentParser) -> None:
    """--pooling, --normalize, --outputs, --adapter, --scores, --template, --revision."""
    add_revision_option(parser)
    group = parser.add_argument_group("results of exported models and folders (default: as the folder says)")
    word(
        group,
        "--pooling",
        "MODES",
        "one vector per text: cls, lasttoken, mean, max, weightedmean, mean_sqrt_len_tokens, several separated by "
        "commas; or none: the model's own outputs",
    )
    group.add_argument("--normalize", action=argparse.BooleanOptionalAction, help="divide vectors by their L2 norm")
    word(group, "--outputs", "NAMES", "outputs or inner tensors to keep, separated by commas")
    word(
        group,
        "--adapter",
        "TASK",
        "for weights with one adapter per task (jina-embeddings-v3): the task whose adapter is added (default: none)",
    )
    _add_scorer_options(group)


def _add_scorer_options(group: argparse._ArgumentGroup) -> None:
    """--scores, --template."""
    word(
        group,
        "--scores",
        "TOKENS",
        "for models that generate text: the token whose score answers a pair, and the token that it is compared "
        "with, such as yes,no",
    )
    word(
        group,
        "--template",
        "TEXT",
        "the prompt of such a reranker: a text or file with {query} and {document}, a chat template, or a known "
        "one's name: qwen3-reranker, bge-reranker-v2-gemma (default: the folder's chat template)",
    )


def head_options(arguments: argparse.Namespace) -> HeadOptions:
    """What add_head_options' options say.

    Raises:
        BuildError: an unknown way of pooling, or too many tokens of answers.
    """
    from padfree.builder.folders.head import HeadOptions

    pooling, outputs = parts_of(arguments.pooling), parts_of(arguments.outputs)
    scores = parts_of(arguments.scores)
    if arguments.scores is not None and (len(scores) > 2 or not all(scores)):
        raise BuildError(
            f"--scores {arguments.scores}: allowed: one token, or the right answer's and the wrong one's, as yes,no; "
            "correct it"
        )
    template = _content_of(arguments.template or "", "--template")
    return HeadOptions(pooling, arguments.normalize, outputs, arguments.adapter or "", scores, template)


def _content_of(text: str, option: str) -> str:
    """What a file holds, or a text that names none."""
    try:
        is_file = Path(text).is_file()
    except (OSError, ValueError):  # longer than any path
        return text
    advice = "give a text in UTF-8"
    return read_text(Path(text), lambda reason: BuildError(f"{option} {reason}"), advice) if is_file else text


def say(line: str) -> None:
    """Tells the user, on stderr, what was chosen for them."""
    print_line(line, error_console())


def add_profile_options(parser: argparse.ArgumentParser) -> None:
    """--max-batch, --max-seq-len, --max-tokens, --opt-tokens: each a list, of the times that it was given."""
    group = parser.add_argument_group(
        "optimisation profile", "Given several times, an option makes several profiles, and an engine for each."
    )
    for option, letter, meaning in (
        ("--max-batch", "B", "maximum sequences per run (default 32)"),
        ("--max-seq-len", "S", "longest sequence in tokens (default: the model's positions, or 512)"),
        ("--max-tokens", "T", "maximum tokens per run (default B x S, at most 65536)"),
        ("--opt-tokens", "T", "token count for which TensorRT chooses kernels (default 0.6 of the maximum)"),
    ):
        group.add_argument(option, type=int, action="append", metavar=letter, help=meaning)


def add_length_options(parser: argparse.ArgumentParser) -> None:
    """--mean-length, --max-length, --batch, --gpu: what the report's figures are for."""
    group = parser.add_argument_group("lengths that the report's figures are for")
    integer(
        group,
        "--max-length",
        "S",
        "longest sequence in tokens (default: the folder's longest text, the model's limit, or 512)",
    )
    number(group, "--mean-length", "L", "tokens per sequence (default 0.6 of the longest)")
    integer(group, "--batch", "B", "sequences per run (default 32)")
    group.add_argument("--gpu", choices=GPUS, default="h200", help="whose roofline is shown (default h200)")


def add_norms_option(parser: argparse._ActionsContainer) -> None:
    """--norms."""
    parser.add_argument(
        "--norms",
        choices=NORMS,
        default=NORMS[0],
        help="layer norms between padfree's GEMMs: folded into these (default), or separate, with kernels of their own",
    )


def add_tokenizer_option(parser: argparse._ActionsContainer, default: str = "the one kept with the model") -> None:
    """--tokenizer: a file, or a folder that holds one."""
    parser.add_argument(
        "--tokenizer",
        type=_tokenizer_file,
        metavar="PATH",
        help=f"tokenizer.json, or a folder with it, for texts (default: {default})",
    )


def _tokenizer_file(text: str) -> Path:
    path = Path(text)
    return path / "tokenizer.json" if path.is_dir() else path


def add_device_option(parser: argparse._ActionsContainer) -> None:
    """--device."""
    integer(parser, "--device", "N", "CUDA device", default=0)


def add_other_gpu_option(parser: argparse._ActionsContainer) -> None:
    """--allow-other-gpu."""
    switch(parser, "--allow-other-gpu", "run a plan built on another GPU of the same architecture")


def add_output_option(parser: argparse.ArgumentParser, example: str) -> None:
    """-o/--output, required."""
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help=f"file to write, such as {example}"
    )
