#!/usr/bin/env python3
"""deploy/local/up refuses a port on which no server can listen, whatever holds it, and says what that is."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CHECK = "source deploy/local/lib.sh && source deploy/local/settings.sh && NATS_PORT=$1 NATS_MONITOR_PORT=$2 && check_free nats-server"


def listener():
    """A listener on a port that no outgoing connection of another program gets, because some tests close it and expect it to be free."""
    for _ in range(100):
        one = socket.socket()
        with contextlib.suppress(OSError):
            one.bind(("127.0.0.1", random.randrange(10_000, 32_768)))
            one.listen()
            return one
        one.close()
    raise OSError("none of 100 ports below 32768 is free")


def port(one):
    return one.getsockname()[1]


class Ports(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.environment = {**os.environ, "LOCAL_DIR": folder.name}

    def check(self, taken):
        with listener() as other:
            free = port(other)
        command = ["bash", "-euo", "pipefail", "-c", CHECK, "check", str(taken), str(free)]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)

    def refused(self, taken, words):
        checked = self.check(taken)
        self.assertEqual(checked.returncode, 1, checked.stderr)
        self.assertIn(f"{taken} (NATS_PORT) {words}", checked.stderr)
        self.assertNotIn("NATS_MONITOR_PORT", checked.stderr)
        self.assertIn("LOCAL_PORTS=23000", checked.stderr)
        return checked.stderr

    def test_free_ports(self):
        with listener() as one:
            free = port(one)
        checked = self.check(free)
        self.assertEqual((checked.returncode, checked.stderr), (0, ""))

    def test_a_listener(self):
        with listener() as one:
            shown = self.refused(port(one), f"pid {os.getpid()} listens there: ")
            self.assertIn(sys.executable.rsplit("/", maxsplit=1)[-1], shown)

    def test_an_outgoing_connection(self):
        with listener() as one, socket.create_connection(("127.0.0.1", port(one))) as connection:
            shown = self.refused(port(connection), f"a connection of pid {os.getpid()} has it until it ends")
            self.assertIn("are also given to outgoing connections", shown)

    def test_a_connection_that_has_ended(self):
        with listener() as one:
            connection = socket.create_connection(("127.0.0.1", port(one)))
            accepted, _ = one.accept()
            taken = port(connection)
            # The end that closes first keeps the port.
            connection.shutdown(socket.SHUT_WR)
            self.assertEqual(accepted.recv(1), b"")
            with contextlib.closing(connection):
                accepted.close()
                self.assertEqual(connection.recv(1), b"")
        self.refused(taken, "a connection that has ended keeps it")


if __name__ == "__main__":
    if not Path("/proc/net/tcp").is_file():
        sys.exit("without /proc nobody knows who holds a port, so this was NOT tested")
    unittest.main()
