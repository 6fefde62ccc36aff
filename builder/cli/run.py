# SPDX-License-Identifier: Apache-2.0
"""`padfree run`: runs an engine or a rewritten model on a file of inputs."""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from padfree.builder.errors import BuildError
from padfree.contract.data_files import ARRAYS, JSON_LINES, kind_of, suffixes_of

from .console import count_text, print_line, print_table
from .coverage import LAYOUTS
from .option_kinds import file, switch, word
from .options import (
    add_device_option,
    add_other_gpu_option,
    add_output_option,
    add_revision_option,
    add_tokenizer_option,
)
from .row_progress import show_batches, show_tokenising
from .stages import add_quiet_option, sayer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from padfree.runtime import Session
    from padfree.runtime.texts import PackedTexts, Text, TextReader


HELP = "run an engine or a rewritten model"
DESCRIPTION = (
    "Runs an engine (TensorRT) or a rewritten .onnx file (onnxruntime, CPU) on a ragged batch. Results "
    "are written as .npz in the order of the inputs: outputs with one row per sequence as [B, ...], outputs with "
    "one row per token as [T, ...] with seq_lens. If the output is named .jsonl or .ndjson, it gets the model's "
    "answer for each text: a vector, a score, a label with its score, or words with labels."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subcommand's arguments."""
    parser.add_argument(
        "model", type=Path, help="model.plan or packed.onnx; a model's folder or a Hugging Face id runs on the CPU"
    )
    sources = parser.add_mutually_exclusive_group(required=True)
    file(
        sources,
        "--input",
        "FILE",
        ".jsonl or .ndjson (an object of token inputs, a text, or a list of ids per line), .npz (packed with seq_lens, "
        "or grids with attention_mask), .txt (one text per line), or .csv or .parquet with a column 'text'",
    )
    word(sources, "--text", "TEXT", "a text instead of a file; repeatable", action="append")
    word(parser, "--text-pair", "TEXT", "the second text of each --text, for pairs", action="append")
    add_output_option(parser, "out.npz")
    add_revision_option(parser)
    add_tokenizer_option(parser)
    switch(
        parser,
        "--truncate",
        "truncate texts to the model's positions; models with a tokenizer always truncate, as their folder says",
    )
    word(parser, "--prompt", "NAME", "name of one of the model's prompts, which is prepended to texts")
    add_device_option(parser)
    add_other_gpu_option(parser)
    switch(parser, "--no-cuda-graphs", "never capture CUDA graphs")
    add_quiet_option(parser)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand."""
    from padfree.builder.array_files import RESULT_SUFFIX, write_results
    from padfree.builder.batches import TextOptions, read_batch, read_texts
    from padfree.builder.destinations import check_destinations
    from padfree.builder.folders.packing import runnable
    from padfree.runtime import Session, run_chunks
    from padfree.runtime.request import read_request

    inputs = [("the model", arguments.model), ("--input", arguments.input), ("--tokenizer", arguments.tokenizer)]
    check_destinations([("-o", arguments.output)], inputs)
    kind = kind_of(arguments.output)
    if kind not in (ARRAYS, JSON_LINES):
        name = (arguments.output.stem.strip("-") or "out") + RESULT_SUFFIX  # of -, which stands for stdout elsewhere
        raise BuildError(
            f"-o {arguments.output}: run writes {RESULT_SUFFIX} files, and of texts {suffixes_of(JSON_LINES)}; name "
            f"it {name}, or take padfree embed, which writes parquet"
        )
    texts_of_user = _texts(arguments)
    with (
        runnable(arguments.model, revision=arguments.revision, say=sayer(arguments)) as model,
        Session(
            model,
            device=arguments.device,
            allow_other_gpu=arguments.allow_other_gpu,
            cuda_graphs=not arguments.no_cuda_graphs,
        ) as session,
    ):
        if kind == JSON_LINES:
            return _write_answers(arguments, session, model, texts_of_user)
        watch = partial(show_tokenising, quiet=arguments.quiet)
        texts = TextOptions(arguments.tokenizer, arguments.truncate, model, arguments.prompt, watch)
        if arguments.text is None:
            request = read_batch(arguments.input, session.metadata, texts)
        else:
            request = read_texts(texts_of_user, session.metadata, texts)
        ragged = read_request(request, session.metadata)
        start = time.perf_counter()
        with show_batches(ragged.seq_lens.tolist(), quiet=arguments.quiet) as ran:
            results = run_chunks(session, ragged, ran)
        elapsed_ms = 1000 * (time.perf_counter() - start)
        metadata = session.metadata
    write_results(arguments.output, results, metadata)
    ids = request[metadata.ids_input().name]
    rows = [
        (item.name, LAYOUTS[item.layout], str(list(results[item.name][0].shape)) if ids else "-")
        for item in metadata.outputs
    ]
    print_table("results", ("output", "holds", "shape of the first"), rows)
    tokens = sum(len(row) for row in ids)
    summary_text = f"{count_text(len(ids), 'sequence')}, {count_text(tokens, 'token')}, {elapsed_ms:.1f} ms"
    print_line(f"{summary_text}; wrote {arguments.output}")
    return 0


def _write_answers(arguments: argparse.Namespace, session: Session, model: Path, texts_of_user: Sequence[Text]) -> int:
    """Writes what the model says about texts: labels, words, scores or vectors."""
    from padfree.builder.answers import answers_of, method_of, write_answers
    from padfree.builder.batches import check_lengths, read_text_batch
    from padfree.builder.tokenization import load_tokenizer
    from padfree.runtime.answers import TextModel

    metadata, inputs = session.metadata, dict[str, Any]()
    source, texts = arguments.input or "--text", texts_of_user
    if arguments.text is None:
        texts, inputs = read_text_batch(arguments.input, metadata)
    if arguments.tokenizer is not None:
        load_tokenizer(arguments.tokenizer, metadata)  # for its hints
    with ExitStack() as stack, ExitStack() as tokenising:
        bars: list[Callable[[int, int], None]] = []

        def start(reader: TextReader, tokens: PackedTexts) -> None:
            tokenising.close()  # one bar at a time
            lengths = tokens.seq_lens.tolist()
            check_lengths(source, lengths, int(tokens.cut.sum()), reader, metadata.longest, arguments.prompt)
            bars.append(stack.enter_context(show_batches(lengths, quiet=arguments.quiet)))

        answering = TextModel(
            session,
            model,
            arguments.tokenizer,
            shown_path=str(arguments.model),
            truncate=arguments.truncate,
            on_texts=tokenising.enter_context(show_tokenising(len(texts), quiet=arguments.quiet)),
            on_tokens=start,
            on_chunk=lambda rows, tokens: bars[-1](rows, tokens),
        )
        answers = answers_of(answering, texts, inputs, arguments.prompt)
    write_answers(arguments.output, texts, answers)
    pairs = not all(isinstance(text, str) for text in texts)
    method = method_of(answering, arguments.prompt, pairs=pairs)
    print_line(f"{count_text(len(texts), 'pair' if pairs else 'text')} ({method}); wrote {arguments.output}")
    return 0


def _texts(arguments: argparse.Namespace) -> list[Text]:
    """What --text and --text-pair say.

    Raises:
        BuildError: there are not as many of the second as of the first.
    """
    texts, seconds = arguments.text or [], arguments.text_pair or []
    if seconds and len(seconds) != len(texts):
        raise BuildError(
            f"there are {len(texts)} --text and {len(seconds)} --text-pair; give a second text for each, in the same "
            "order"
        )
    return list(zip(texts, seconds, strict=True)) if seconds else texts
