# SPDX-License-Identifier: Apache-2.0
"""The sockets that a server listens at: one a front-end, all at one port, which no other server has."""

from __future__ import annotations

import socket

from padfree.runtime import SessionError

BACKLOG = 4096
"""Connections that wait to be accepted."""


def listen(host: str, port: int, count: int) -> list[socket.socket]:
    """Listening sockets at one address, all of them at the same port.

    Sockets that share a port would share it with another server's, too. So the first one takes the port alone, which
    the kernel grants only one socket, and only then shares it with the others of this server.

    Raises:
        SessionError: the address cannot be used.
    """
    listeners: list[socket.socket] = []
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        for at in range(count):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if at:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            listener.bind(address)
            address = listener.getsockname()
            listener.listen(BACKLOG)
            if not at:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        for listener in listeners:
            listener.close()
        raise SessionError(f"cannot listen at {host}:{port} ({error}); pass another --host or --port") from error
    return listeners
