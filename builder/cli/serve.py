# SPDX-License-Identifier: Apache-2.0
"""`padfree serve`: a plan or a rewritten model behind the HTTP APIs of OpenAI, Cohere and TEI."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from padfree.builder.errors import BuildError
from padfree.builder.gpu_files import check_gpus

from .arguments import Parser
from .console import print_line, print_pairs
from .option_kinds import file, integer, number, switch, value_of, word
from .options import (
    add_device_option,
    add_other_gpu_option,
    add_revision_option,
    add_tokenizer_option,
    say,
)

PREFIX = "PADFREE"
KEY_VARIABLE = "PADFREE_API_KEY"
PACKAGES = ("starlette", "uvicorn", "orjson")


HELP = "serve a model over HTTP"
DESCRIPTION = (
    "Serves an engine (TensorRT) or a rewritten .onnx file (onnxruntime, CPU) over HTTP: OpenAI's "
    "/v1/embeddings, Cohere's /v1/rerank, and the routes of text-embeddings-inference. After SIGTERM or "
    "Ctrl-C it answers the requests that it has taken, and ends."
)


def add_arguments(parser: Parser) -> None:
    """Adds the subcommand's arguments."""
    parser.epilog = "Environment variables, named in brackets, set what the command line does not."
    parser.add_argument(
        "model", type=Path, help="model.plan or packed.onnx; a model's folder or a Hugging Face id is served on the CPU"
    )
    _add_model_options(parser.add_argument_group("the model"))
    _add_server_options(parser.add_argument_group("the server"))
    _add_limit_options(parser.add_argument_group("limits"))
    parser.add_variables(PREFIX)


def _add_model_options(group: argparse._ArgumentGroup) -> None:
    add_revision_option(group)
    add_tokenizer_option(group)
    group.add_argument("--name", help="the model's name for clients (default: the file's name)")
    group.add_argument(
        "--task",
        choices=("embed", "rerank", "classify", "sparse", "tag"),
        help="what the model is for (default: what its folder and outputs say)",
    )
    word(group, "--output", "NAME", "the output that answers a text (default: the one for the task)")
    integer(group, "--max-length", "S", "maximum tokens per text (default: the model's)")
    word(group, "--query-prompt", "TEXT", "text before each query")
    word(group, "--document-prompt", "TEXT", "text before each document")
    word(group, "--default-prompt", "NAME", "name of the prompt for requests that name none")
    gpus = group.add_mutually_exclusive_group()
    add_device_option(gpus)
    word(gpus, "--gpus", "LIST", "several GPUs, with the plan on each: 'all', or numbers separated by commas")
    integer(group, "--contexts", "N", "concurrent runs per GPU", default=2)
    switch(
        group,
        "--cuda-graphs",
        "capture repeated sizes, for loads with few sizes: requests wait for captures (6 to 24 ms with BERT-base)",
    )
    add_other_gpu_option(group)


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, help="port to listen on; 0 takes a free one (default 8080)")
    integer(group, "--processes", "N", "front-end processes (default: one for every two cores)")
    word(
        group,
        "--api-key",
        "KEY",
        f"a key that callers must have; repeatable. Prefer the variable {KEY_VARIABLE}: other users see arguments",
        action="append",
        default=[],
    )
    file(group, "--api-key-file", "FILE", "more keys, one per line, as secrets are mounted in containers")
    switch(group, "--accept-token-ids", "also take token ids of the model's own tokenizer in place of texts")
    group.add_argument(
        "--long-texts",
        choices=("truncate", "refuse"),
        default="truncate",
        help="what happens to texts beyond --max-length (default truncate)",
    )
    number(group, "--grace-seconds", "S", "longest wait at the end for requests that have been taken", default=30.0)
    number(
        group,
        "--drain-seconds",
        "S",
        "seconds after SIGTERM in which requests are still taken, while /health reports the end",
        default=0.0,
    )
    word(group, "--access-log", "FILE", "a line of JSON per request, without texts; - for stdout")
    switch(group, "--no-docs", "serve no pages at /docs and /openapi.json")


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    integer(group, "--max-body-bytes", "N", "largest request (default 8 MiB)", default=1 << 23)
    integer(group, "--max-texts", "N", "most texts in a request", default=2048)
    integer(group, "--max-text-bytes", "N", "longest text, in UTF-8", default=1 << 16)
    integer(group, "--max-concurrent-requests", "N", "most requests under way in a front-end process", default=512)
    integer(group, "--max-waiting-tokens", "T", "most tokens that wait for the model", default=1 << 20)
    number(group, "--request-seconds", "S", "longest time for a request", default=30.0)


def run(arguments: argparse.Namespace) -> int:
    """Runs the subcommand; an error about an option that a variable set names the variable, too."""
    from padfree.runtime import SessionError

    try:
        return _run(arguments)
    except (BuildError, SessionError) as error:
        options = {f"--{name.replace('_', '-')}": variable for name, variable in arguments.from_environment.items()}
        messages = [
            f"{option} is from {variable}" for option, variable in options.items() if _names(str(error), option)
        ]
        if not messages:
            raise
        raise BuildError(f"{error} ({', '.join(messages)})") from error


def _names(text: str, option: str) -> bool:
    return re.search(rf"{re.escape(option)}(?![\w-])", text) is not None


def _run(arguments: argparse.Namespace) -> int:
    from padfree.builder.folders.packing import runnable
    from padfree.contract.installation import install_command
    from padfree.runtime.pool import read_devices

    try:
        from padfree.serving import serve
    except ImportError as error:
        if error.name not in PACKAGES:
            raise
        raise BuildError(f"padfree serve needs {', '.join(PACKAGES)}: {install_command('serve')}") from error
    if arguments.contexts < 1:
        raise BuildError(f"--contexts {arguments.contexts}: allowed: 1 or more; leave it out for 2")
    options, choices = _options(arguments), _choices(arguments)
    devices = (arguments.device,) if arguments.gpus is None else read_devices(arguments.gpus)
    if arguments.gpus is not None:
        check_gpus(arguments.gpus, arguments.model)
    with runnable(arguments.model, revision=arguments.revision, say=say) as model:
        serve(
            model,
            options,
            choices,
            devices=devices,
            allow_other_gpu=arguments.allow_other_gpu,
            contexts=arguments.contexts,
            cuda_graphs=arguments.cuda_graphs,
            ends_process=True,
            on_ready=lambda url: print_line(f"serving {arguments.model} at {url}"),
            on_summary=print_pairs,
        )
    return 0


def _options(arguments: argparse.Namespace) -> Any:
    from padfree.serving import Limits, ServeOptions

    if arguments.processes is not None and arguments.processes < 1:
        raise BuildError(
            f"--processes {arguments.processes}: allowed: 1 or more; leave it out for a choice by the cores"
        )
    return value_of(
        ServeOptions,
        arguments,
        processes=arguments.processes or 0,
        # A key from a file or a secret often ends with a line end, as lines of --api-key-file do.
        api_keys=(*(key.strip() for key in arguments.api_key), *_keys_of_file(arguments.api_key_file)),
        docs=not arguments.no_docs,
        limits=Limits(
            body_bytes=arguments.max_body_bytes,
            texts=arguments.max_texts,
            text_bytes=arguments.max_text_bytes,
            concurrency=arguments.max_concurrent_requests,
            waiting_tokens=arguments.max_waiting_tokens,
            seconds=arguments.request_seconds,
        ),
    )


def _keys_of_file(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        lines = path.read_text("utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BuildError(
            f"--api-key-file {path}: cannot be read ({reason}); name a file with one key per line"
        ) from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise BuildError(f"--api-key-file {path}: has no key; write one per line, or leave it out to answer everybody")
    return keys


def _choices(arguments: argparse.Namespace) -> Any:
    from padfree.serving import Choices

    prompts = {"query": arguments.query_prompt, "document": arguments.document_prompt}
    return value_of(Choices, arguments, prompts={name: text for name, text in prompts.items() if text is not None})
