# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face Hub on this machine, for huggingface_hub's own client: repositories, commits, conditions, ranges."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a1" * 20
_RANGE = "bytes="


@dataclass
class FakeHub:
    """What the hub has, and which requests it got.

    Attributes:
        repositories: name -> its files.
        gated: names of repositories whose conditions have to be accepted.
        breaks: names of files whose first download ends after half of their bytes.
        served: (name of a file, bytes sent) in the order of requests.
    """

    repositories: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    breaks: set[str] = field(default_factory=set)
    served: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serves the hub on a free port."""

    class Handler(_Handler):
        pass

    Handler.hub = hub
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        """Answers for files."""
        self._answer(body=False)

    def do_GET(self) -> None:
        """Answers for files, and for information about repositories."""
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        is_api = parts[0] == "api"
        parts = parts[2:] if is_api else parts
        name, rest = "/".join(parts[:2]), parts[2:]
        files = self.hub.repositories.get(name)
        if files is None:
            self._send(401 if is_api else 404, b"", {"X-Error-Code": "RepoNotFound"})
        elif len(rest) > 1 and rest[1] not in ("main", COMMIT):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif is_api and rest[:1] == ["tree"]:
            listed = [
                {"type": "file", "path": path, "size": len(content), "oid": _digest(content)}
                for path, content in files.items()
            ]
            self._send(200, json.dumps(listed).encode(), {})
        elif is_api:
            siblings = [{"rfilename": path, "size": len(content)} for path, content in files.items()]
            said = {"id": name, "modelId": name, "sha": COMMIT, "siblings": siblings}
            self._send(200, json.dumps(said).encode(), {})
        else:
            self._send_file(name, "/".join(rest[2:]), files, body=body)

    def _send_file(self, name: str, path: str, files: dict[str, bytes], *, body: bool) -> None:
        if name in self.hub.gated:
            self._send(403, b"", {"X-Error-Code": "GatedRepo"})
            return
        if path not in files:
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        content, headers = files[path], {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(files[path])}"'}
        asked = self.headers.get("Range", "")
        begin = int(asked.removeprefix(_RANGE).split("-")[0]) if asked.startswith(_RANGE) else 0
        if begin:
            headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        sent = content[begin:]
        if body and path in self.hub.breaks:
            self.hub.breaks.discard(path)
            self.hub.served.append((path, len(sent) // 2))  # before the client has it: tests may end at once then
            self._send(200, sent, headers, ends_after=len(sent) // 2)
            return
        if body:
            self.hub.served.append((path, len(sent)))
        self._send(206 if begin else 200, sent, headers, body=body)

    def _send(
        self, status: int, content: bytes, headers: dict[str, str], *, body: bool = True, ends_after: int | None = None
    ) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body:
            self.wfile.write(content[:ends_after])
        if ends_after is not None:
            self.wfile.flush()
            self.close_connection = True


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()
