# SPDX-License-Identifier: Apache-2.0
"""A server on one port that is started again when it is killed, as a process manager does, with the same files."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

import onnx
from onnx import numpy_helper
from padfree.runtime.texts import tokenizer_path

from tests.serving.conftest import EMBEDDER
from tests.support.folders import TOKENIZER
from tests.support.served_models import Server, write_model

LEAVE_S, TRY_S = 60.0, 0.5
"""Front-ends of the previous server need a moment to release the port."""


class Files:
    """The model and its tokenizer, and replacements that are just as valid but give other answers.

    Args:
        folder: where they are.
        products: as for write_model: how slow the model is.
    """

    def __init__(self, folder: Path, products: int) -> None:
        self.model = write_model(folder / "model.onnx", text=EMBEDDER.to_dict(), gemms=products)
        self._tokenizer = tokenizer_path(self.model)
        self._good = {path: path.read_bytes() for path in (self.model, self._tokenizer)}
        self._others = {self.model: _other_model(self.model), self._tokenizer: _other_tokenizer()}

    def replace(self) -> None:
        """Renames the others into their places."""
        for path, data in self._others.items():
            _put(path, data)

    def replace_tokenizer(self) -> None:
        """Renames the other tokenizer into its place, next to the good model."""
        self.restore()
        _put(self._tokenizer, self._others[self._tokenizer])

    def restore(self) -> None:
        """Puts the good ones back."""
        for path, data in self._good.items():
            _put(path, data)


class Service:
    """Runs `padfree serve` again and again.

    Args:
        files: what it serves.
        options: of the command.

    Attributes:
        server: the one that runs now, or was killed last.
        starts: seconds that each start took, including the wait for the previous server's port.
    """

    def __init__(self, files: Files, *options: str) -> None:
        self._files = files
        self._options = (*options, "--port", str(_free_port()))
        self._logs: list[str] = []
        self.starts: list[float] = []
        self.server = self._start(time.monotonic())

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, the same for all servers."""
        return self.server.address

    async def kill(self, *, damaged: bool) -> str | None:
        """Kills the process with the model, and starts another server.

        Args:
            damaged: try with another tokenizer first, which must be refused.

        Returns:
            What is wrong, or None.
        """
        self.server.process.kill()
        await asyncio.to_thread(self.server.process.communicate)
        self._logs.append(self.server.log())
        wrong = await asyncio.to_thread(self._start_damaged) if damaged else None
        self._files.restore()
        self.server = await asyncio.to_thread(self._start, time.monotonic())
        return wrong

    def end(self) -> str:
        """Ends the server in an orderly way; returns the logs of all servers."""
        self._logs.append(self.server.end())
        return "".join(self._logs)

    def _start(self, since: float) -> Server:
        until = time.monotonic() + LEAVE_S
        while (server := self._try()) is None:
            assert time.monotonic() < until, f"the port was not free {LEAVE_S:.0f} s after the server was killed"
            time.sleep(TRY_S)
        self.starts.append(time.monotonic() - since)
        return server

    def _try(self) -> Server | None:
        """Starts a server; None if the port is not free yet."""
        try:
            return Server(self._files.model, *self._options)
        except RuntimeError as error:
            if "cannot listen" in str(error):
                return None
            raise

    def _start_damaged(self) -> str | None:
        self._files.replace_tokenizer()
        try:
            server = Server(self._files.model, *self._options)
        except RuntimeError as error:
            return None if "tokenizer" in str(error) and "Traceback" not in str(error) else f"refused with {error}"
        server.end()
        return "a server started with a tokenizer that is not the model's"


def _put(path: Path, data: bytes) -> None:
    aside = path.with_name(path.name + ".new")
    aside.write_bytes(data)
    aside.replace(path)


def _other_model(path: Path) -> bytes:
    """The model with the rows of its table in another order."""
    model = onnx.load(str(path))
    (table,) = (item for item in model.graph.initializer if item.name == "table")
    table.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(table)[::-1].copy(), "table"))
    data: bytes = model.SerializeToString()
    return data


def _other_tokenizer() -> bytes:
    """The tokenizer with the ids of its words exchanged."""
    settings = json.loads(TOKENIZER.read_bytes())
    vocabulary = settings["model"]["vocab"]
    words = sorted(word for word in vocabulary if word.isalpha())
    ids = [vocabulary[word] for word in words]
    vocabulary.update(zip(words, ids[1:] + ids[:1], strict=True))
    return json.dumps(settings).encode()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
