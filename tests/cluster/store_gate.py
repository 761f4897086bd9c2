"""Where machines of ``hosts.py`` reach a store of this machine: passes their connections to a Unix socket.

Runs in the hub's network, with an address, a port and the socket's path as its arguments.
"""

from __future__ import annotations

import socket
import sys
import threading


def main() -> None:
    door = socket.create_server((sys.argv[1], int(sys.argv[2])), backlog=256)
    print("open", flush=True)
    while True:
        client, _ = door.accept()
        threading.Thread(target=serve, args=(client, sys.argv[3]), daemon=True).start()


def serve(client: socket.socket, path: str) -> None:
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect(path)
    except OSError:
        client.close()
        return
    threading.Thread(target=shovel, args=(server, client), daemon=True).start()
    shovel(client, server)


def shovel(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 18):
            target.sendall(data)
    except OSError:
        pass
    for each in (source, target):
        try:
            each.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


if __name__ == "__main__":
    main()
