# SPDX-License-Identifier: Apache-2.0
"""`padfree serve`: a plan or a rewritten model behind the HTTP APIs of OpenAI, Cohere and TEI."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from padfree.builder.errors import BuildError

from .arguments import Parser
from .console import output_console, print_line, print_pairs
from .options import add_device_option, add_other_gpu_option, add_revision_option, add_tokenizer_option, say

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
    group.add_argument(
        "--output", metavar="NAME", help="the output that answers a text (default: the one for the task)"
    )
    group.add_argument("--max-length", type=int, metavar="S", help="maximum tokens per text (default: the model's)")
    group.add_argument("--query-prompt", metavar="TEXT", help="text before each query")
    group.add_argument("--document-prompt", metavar="TEXT", help="text before each document")
    group.add_argument("--default-prompt", metavar="NAME", help="name of the prompt for requests that name none")
    gpus = group.add_mutually_exclusive_group()
    add_device_option(gpus)
    gpus.add_argument(
        "--gpus", metavar="LIST", help="several GPUs, with the plan on each: 'all', or numbers separated by commas"
    )
    group.add_argument("--contexts", type=int, default=2, metavar="N", help="concurrent runs per GPU (default 2)")
    group.add_argument(
        "--cuda-graphs",
        action="store_true",
        help="capture repeated sizes, for loads with few sizes: requests wait for captures (6 to 24 ms with BERT-base)",
    )
    add_other_gpu_option(group)


def _add_server_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    group.add_argument("--port", type=int, default=8080, help="port to listen on; 0 takes a free one (default 8080)")
    group.add_argument(
        "--processes", type=int, metavar="N", help="front-end processes (default: one for every two cores)"
    )
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"a key that callers must have; repeatable. Prefer the variable {KEY_VARIABLE}: other users see arguments",
    )
    group.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="more keys, one per line, as secrets are mounted in containers",
    )
    group.add_argument(
        "--accept-token-ids",
        action="store_true",
        help="also take token ids of the model's own tokenizer in place of texts",
    )
    group.add_argument(
        "--long-texts",
        choices=("truncate", "refuse"),
        default="truncate",
        help="what happens to texts beyond --max-length (default truncate)",
    )
    group.add_argument(
        "--grace-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="longest wait at the end for requests that have been taken (default 30)",
    )
    group.add_argument(
        "--drain-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="seconds after SIGTERM in which requests are still taken, while /health reports the end (default 0)",
    )
    group.add_argument("--access-log", metavar="FILE", help="a line of JSON per request, without texts; - for stdout")
    group.add_argument("--no-docs", action="store_true", help="serve no pages at /docs and /openapi.json")


def _add_limit_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--max-body-bytes", type=int, default=1 << 23, metavar="N", help="largest request (default 8 MiB)"
    )
    group.add_argument(
        "--max-texts", type=int, default=2048, metavar="N", help="most texts in a request (default 2048)"
    )
    group.add_argument(
        "--max-text-bytes", type=int, default=1 << 16, metavar="N", help="longest text, in UTF-8 (default 65536)"
    )
    group.add_argument(
        "--max-concurrent-requests",
        type=int,
        default=512,
        metavar="N",
        help="most requests under way in a front-end process (default 512)",
    )
    group.add_argument(
        "--max-waiting-tokens",
        type=int,
        default=1 << 20,
        metavar="T",
        help="most tokens that wait for the model (default 1048576)",
    )
    group.add_argument(
        "--request-seconds", type=float, default=30.0, metavar="S", help="longest time for a request (default 30)"
    )


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
    console = output_console()
    with runnable(arguments.model, revision=arguments.revision, say=say) as model:
        serve(
            model,
            options,
            choices,
            devices=(arguments.device,) if arguments.gpus is None else read_devices(arguments.gpus),
            allow_other_gpu=arguments.allow_other_gpu,
            contexts=arguments.contexts,
            cuda_graphs=arguments.cuda_graphs,
            ends_process=True,
            on_ready=lambda url: print_line(console, f"serving {arguments.model} at {url}"),
            on_summary=lambda pairs: print_pairs(console, pairs),
        )
    return 0


def _options(arguments: argparse.Namespace) -> Any:
    from padfree.serving import Limits, ServeOptions

    if arguments.processes is not None and arguments.processes < 1:
        raise BuildError(
            f"--processes {arguments.processes}: allowed: 1 or more; leave it out for a choice by the cores"
        )
    return ServeOptions(
        host=arguments.host,
        port=arguments.port,
        processes=arguments.processes or 0,
        api_keys=(*arguments.api_key, *_keys_of_file(arguments.api_key_file)),
        accept_token_ids=arguments.accept_token_ids,
        long_texts=arguments.long_texts,
        grace_seconds=arguments.grace_seconds,
        drain_seconds=arguments.drain_seconds,
        access_log=arguments.access_log,
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
    return Choices(
        task=arguments.task,
        output=arguments.output,
        tokenizer=arguments.tokenizer,
        max_length=arguments.max_length,
        prompts={name: text for name, text in prompts.items() if text is not None},
        default_prompt=arguments.default_prompt,
        name=arguments.name,
    )
