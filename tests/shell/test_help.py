#!/usr/bin/env python3
"""--help of each script says something, and builds, installs and starts nothing."""

import os
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: They stand for other programs, which are not called with --help.
STAND_INS = {"tests/fuzz/instrumented", "tests/release/docker"}
BUILDERS = ("cargo", "rustc", "docker", "npm", "node", "pip", "apt-get", "initdb", "nats-server")


def asked(script: str, folder: Path, path: str) -> str:
    """What is wrong with the help of a script; otherwise nothing."""
    called = folder / script.replace("/", "-")
    environment = {**os.environ, "PATH": path, "CALLED": str(called), "LOCAL_DIR": str(folder / "local"), "CARGO_TARGET_DIR": str(folder)}
    done = subprocess.run(
        [ROOT / script, "--help"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if called.exists():
        return f"{script} --help calls {called.read_text().strip()}"
    if (folder / "local").exists():
        return f"{script} --help makes a folder"
    return "" if (done.stdout + done.stderr).strip() else f"{script} --help says nothing"


class Help(unittest.TestCase):
    def test_help_only_says_something(self):
        listed = subprocess.run(
            ["git", "ls-files", "--stage", ".ci", "clients", "deploy", "tests"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        scripts = [line.split("\t")[1] for line in listed.stdout.splitlines() if line.startswith("100755")]
        scripts = [script for script in scripts if script not in STAND_INS and (ROOT / script).is_file()]
        self.assertGreater(len(scripts), 25)
        with tempfile.TemporaryDirectory() as folder:
            programs = Path(folder) / "bin"
            programs.mkdir()
            for name in BUILDERS:
                (programs / name).write_text('#!/bin/sh\necho "$(basename "$0") $*" >>"$CALLED"\nexit 97\n')
                (programs / name).chmod(0o755)
            path = f"{programs}:{os.environ['PATH']}"
            with ThreadPoolExecutor(4) as pool:
                wrong = [one for one in pool.map(lambda script: asked(script, Path(folder), path), scripts) if one]
        self.assertEqual(wrong, [])


if __name__ == "__main__":
    unittest.main()
