# SPDX-License-Identifier: Apache-2.0
"""Packed models that cost almost nothing and can be computed in NumPy, and a running `padfree serve` of them.

A text's vector is the sum of one row of a table per token, which counts twice in the second text of a pair. The table
lacks the row of the last id, so that a run with that token fails.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from padfree.contract.texts import PAIRS, SENTENCES, TextInfo
from padfree.runtime.texts import tokenizer_path
from tokenizers import Tokenizer

from .folders import TOKENIZER, VOCABULARY

Array = npt.NDArray[Any]
Text = str | tuple[str, str]

WIDTH = 8
POSITIONS = 128
GEMM = 512
MOST_END_S = 60.0
DIGEST = hashlib.sha256(TOKENIZER.read_bytes()).hexdigest()
PROMPTS = {"query": "query: "}


def table(width: int) -> Array:
    """Rows for all ids except the last."""
    return np.random.default_rng(7).standard_normal((VOCABULARY - 1, width), np.float32)


def fault() -> str:
    """A word that makes a run of the model fail."""
    return str(Tokenizer.from_file(str(TOKENIZER)).id_to_token(VOCABULARY - 1))


def expected_rows(texts: Sequence[Text], width: int = WIDTH) -> Array:
    """The vectors of texts or pairs: [texts, width]."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    tokenizer.no_padding()
    tokenizer.enable_truncation(POSITIONS)
    rows = table(width)
    results = [tokenizer.encode(*([text] if isinstance(text, str) else text)) for text in texts]
    return np.stack([(rows[one.ids] * (1 + np.array(one.type_ids))[:, None]).sum(0) for one in results])


def unit(vectors: Array) -> Array:
    """The vectors, scaled to length 1."""
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def write_model(
    path: Path,
    output: str = "sentence_embedding",
    width: int = WIDTH,
    text: Any = None,
    *,
    positive: bool = False,
    gemms: int = 0,
) -> Path:
    """Writes the model, and its tokenizer next to it if `text` describes one.

    `positive`: negative numbers become 0, as in vectors of sparse encoders. `gemms`: how many products of each token
    with matrices of GEMM x GEMM to compute; they only take time.
    """
    constants: dict[str, Array] = {
        "table": table(width),
        "none": np.zeros((1, width)),
        "axis": np.array(0, np.int64),
        "last": np.array([1], np.int64),
        "one": np.array(1, np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["plain_rows"]),
        *_work(gemms, constants, width),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["types", "one"], ["factors"]),
        helper.make_node("Unsqueeze", ["factors", "last"], ["column"]),
        helper.make_node("Mul", ["rows", "column"], ["weighted"]),
        helper.make_node("Cast", ["weighted"], ["exact"], to=TensorProto.DOUBLE),  # the sums go over all texts of a run
        helper.make_node("CumSum", ["exact", "axis"], ["sums"]),
        helper.make_node("Concat", ["none", "sums"], ["from_none"], axis=0),
        helper.make_node("Cast", ["seq_lens"], ["lengths"], to=TensorProto.INT64),
        helper.make_node("CumSum", ["lengths", "axis"], ["ends"]),
        helper.make_node("Sub", ["ends", "lengths"], ["starts"]),
        helper.make_node("Gather", ["from_none", "ends"], ["up_to_end"]),
        helper.make_node("Gather", ["from_none", "starts"], ["up_to_start"]),
        helper.make_node("Sub", ["up_to_end", "up_to_start"], ["difference"]),
        helper.make_node("Cast", ["difference"], ["sum" if positive else output], to=TensorProto.FLOAT),
        *([helper.make_node("Relu", ["sum"], [output])] if positive else []),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["T"]) for name in ("input_ids", "token_type_ids")]
        + [helper.make_tensor_value_info("seq_lens", TensorProto.INT32, ["B"])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["B", width])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    metadata = {
        "format": 1,
        "interface": "packed",
        "precision": "fp32",
        "inputs": [
            {"name": "input_ids", "role": "tokens", "limit": VOCABULARY, "dtype": "int32"},
            {"name": "token_type_ids", "role": "tokens", "limit": 2, "dtype": "int32"},
            {"name": "seq_lens", "role": "seq_lens", "limit": None, "dtype": "int32"},
        ],
        "outputs": [{"name": output, "layout": "per_sequence", "dtype": "float32", "shape": [None, width]}],
        "max_positions": POSITIONS,
        "plugins": {},
        "text": text,
    }
    if text is not None:
        shutil.copy(TOKENIZER, tokenizer_path(path))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"padfree": json.dumps(metadata)})
    onnx.save_model(model, str(path))
    return path


def write_embedder(path: Path) -> Path:
    """Writes a packed model with one vector per text."""
    text = TextInfo(SENTENCES, DIGEST, prompts=PROMPTS, pooling=("mean",))
    return write_model(path, text=text.to_dict())


def write_reranker(path: Path) -> Path:
    """Writes a packed model with one score per pair."""
    text = TextInfo(PAIRS, DIGEST, labels=("LABEL_0",), activation="identity")
    return write_model(path, "scores", 1, text.to_dict())


def _work(gemms: int, constants: dict[str, Array], width: int) -> list[onnx.NodeProto]:
    """Nodes that spend time on GEMMs and then give `rows`, which equal `plain_rows`."""
    if not gemms:
        return [helper.make_node("Identity", ["plain_rows"], ["rows"])]
    rng = np.random.default_rng(0)
    constants.update(
        widen=rng.standard_normal((width, GEMM), np.float32),
        square=rng.standard_normal((GEMM, GEMM), np.float32) / GEMM**0.5,
        narrow=np.zeros((GEMM, width), np.float32),
    )
    nodes = [helper.make_node("MatMul", ["plain_rows", "widen"], ["wide0"])]
    nodes += [helper.make_node("MatMul", [f"wide{at}", "square"], [f"wide{at + 1}"]) for at in range(gemms)]
    nodes.append(helper.make_node("MatMul", [f"wide{gemms}", "narrow"], ["zeros"]))
    nodes.append(helper.make_node("Add", ["plain_rows", "zeros"], ["rows"]))
    return nodes


class Server:
    """A `padfree serve` in processes of its own, on a free port.

    Args:
        model: the file or folder.
        options: further arguments.
        environment: variables in addition to those of the tests.
    """

    def __init__(self, model: Path, *options: str, **environment: str) -> None:
        command = [sys.executable, "-m", "padfree.builder.cli", "serve", str(model), "--port", "0", *options]
        # A file, not a pipe: a server whose log nobody reads would block on a full pipe.
        self._log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env={**os.environ, **environment}
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        match = re.search(r"at (http://\S+)", line)
        if match is None:
            self.process.wait()
            raise RuntimeError(f"the server did not start: {line}{self.log()}")
        self.url = match[1]

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    @property
    def front_ends(self) -> list[int]:
        """The ids of the processes that read HTTP."""
        return find_spawned(self.process.pid)

    def end(self, number: int = signal.SIGTERM) -> str:
        """Sends a signal and waits; returns what was written to stderr."""
        self.process.send_signal(number)
        try:
            self.process.communicate(timeout=MOST_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.log()

    def log(self) -> str:
        """What has been written to stderr so far."""
        return Path(self._log.name).read_text("utf-8")

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.end()


def find_spawned(pid: int) -> list[int]:
    """The processes that a process has started with multiprocessing, but for those that end at this moment."""
    children, spawned = list[int](), list[int]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended
            children += map(int, (task / "children").read_text().split())
    for child in children:
        with suppress(OSError):  # the process has ended
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                spawned.append(child)
    return spawned


def wait_until(check: Any, most_s: float = MOST_END_S) -> None:
    """Returns as soon as the check is true, and fails if it is not within `most_s`."""
    until = time.monotonic() + most_s
    while not check():
        assert time.monotonic() < until, "it did not become true"
        time.sleep(0.02)
