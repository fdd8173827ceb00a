"""A server that answers with any bytes, for the tests of what is no answer of the service."""

import contextlib
import socketserver
import threading
from collections.abc import Callable, Iterator
from typing import Any

Write = Callable[[bytes], object]
#: Gets the request's head and writes what it likes; afterwards the connection ends.
Answering = Callable[[bytes, Write], None]


@contextlib.contextmanager
def server(answering: Answering) -> Iterator[str]:
    """Its base URL."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            head = b""
            while line := self.rfile.readline(65536):
                if line == b"\r\n":
                    break
                head += line
            for line in head.lower().splitlines():
                if line.startswith(b"content-length:"):
                    self.rfile.read(int(line.split(b":")[1]))
            # The client may have gone.
            with contextlib.suppress(OSError):
                answering(head, self.request.sendall)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_address[1]}"
        running.shutdown()
