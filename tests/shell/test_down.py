#!/usr/bin/env python3
"""deploy/local/down --wipe removes nothing while a process runs on the data."""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Wipe(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.local = Path(folder.name) / "local"
        self.data = self.local / "data" / "nats"
        self.data.mkdir(parents=True)
        (self.local / "log").mkdir()

    def wipe(self):
        down = [ROOT / "deploy/local/down", "--wipe"]
        environment = {**os.environ, "LOCAL_DIR": str(self.local)}
        return subprocess.run(down, env=environment, capture_output=True, text=True, check=False)

    def start(self, *arguments, **options):
        """A process of the name nats-server that was started by hand, so that nothing in run/ knows it."""
        program = self.local.parent / "nats-server"
        program.write_text("#!/bin/sh\necho began\nread -r _\n")
        program.chmod(0o755)
        process = subprocess.Popen(
            [program, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )
        self.addCleanup(process.communicate)
        self.assertEqual(process.stdout.readline(), "began\n")
        return process

    def refused(self, process):
        wiped = self.wipe()
        self.assertEqual(wiped.returncode, 1, wiped.stderr)
        self.assertIn(f"pid {process.pid}:", wiped.stderr)
        self.assertNotIn("removed", wiped.stderr.replace("nothing was removed", ""))
        self.assertTrue(self.data.is_dir())
        process.communicate()
        self.assertEqual(self.wipe().returncode, 0)
        self.assertFalse(self.data.exists())

    def test_a_server_that_was_told_to_use_the_data(self):
        self.refused(self.start("-sd", self.data))

    def test_a_process_that_works_in_the_data(self):
        self.refused(self.start(cwd=self.data))

    def test_a_program_that_writes_to_the_logs(self):
        with open(self.local / "log" / "nats-server.log", "w", encoding="utf-8") as log:
            self.refused(self.start(stderr=log))

    def test_a_server_of_another_folder(self):
        self.start("-sd", f"{self.local}/data-of-another")
        self.assertEqual(self.wipe().returncode, 0)


if __name__ == "__main__":
    if not Path("/proc/self/fd").is_dir():
        sys.exit("without /proc nobody knows who uses a folder, so this was NOT tested")
    unittest.main()
