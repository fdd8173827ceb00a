#!/usr/bin/env python3
"""deploy/local/up refuses settings before it stops a process, and shows only what the last start has logged."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = "source deploy/local/lib.sh && source deploy/local/settings.sh && "
#: Refuses one setting, as our programs do, and says which others it got.
PROGRAM = """#!/bin/sh
[ "$1 $2" = "config show" ] || exit 3
echo "LISTEN=$LISTEN"
[ "${WEBHOOK_ALLOW-}" != localhost ] || { echo "$(basename "$0"): error: WEBHOOK_ALLOW is wrong" >&2; exit 2; }
[ -z "${SANDBOX_SECRET_KEY-}" ] || { echo "$(basename "$0") got a secret of the sandbox" >&2; exit 2; }
"""


class Settings(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("ingress", "notifier", "console"):
            (self.folder / name).write_text(PROGRAM)
            (self.folder / name).chmod(0o755)
        (self.folder / "log").mkdir()
        (self.folder / "run").mkdir()
        self.environment = {**os.environ, "LOCAL_DIR": str(self.folder), "BIN": str(self.folder)}

    def bash(self, script, **settings):
        command = ["bash", "-euo", "pipefail", "-c", SOURCES + script]
        return subprocess.run(
            command, cwd=ROOT, env={**self.environment, **settings}, capture_output=True, text=True, check=False
        )

    def exactly(self, **settings):
        return self.bash("gather_settings && check_exactly ingress notifier console", **settings)

    def test_the_programs_check_what_they_would_get(self):
        done = self.exactly(SANDBOX_SECRET_KEY="c2VjcmV0", LISTEN="from the caller")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_all_refusals_are_named_before_anything_is_stopped(self):
        done = self.exactly(WEBHOOK_ALLOW="localhost")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing was started, stopped or saved:", done.stderr)
        for name in ("ingress", "notifier"):
            self.assertIn(f"  {name}: error: WEBHOOK_ALLOW is wrong", done.stderr)
        self.assertNotIn("console", done.stderr)

    def test_ports_of_the_system_are_refused_unless_one_may_listen_there(self):
        script = "id() { if [[ $1 == -u ]]; then echo 1000; else echo ana; fi; }; gather_settings && check_settings"
        done = self.bash(script, LOCAL_PORTS="80")
        self.assertEqual(done.returncode, 1)
        self.assertIn("INGRESS_PORT=160 is a port of the system, on which ana may not listen", done.stderr)
        done = self.bash(script, LOCAL_PORTS="23000")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_server_that_was_named_is_used_or_refused(self):
        script = "source deploy/local/servers.sh; need() { :; }; find_servers; echo found $PG_BIN"
        for name in ("NATS_SERVER_BIN", "PG_BIN"):
            done = self.bash(script, **{"PG_BIN": "", "NATS_SERVER_BIN": "", name: "/nonexistent"})
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn(f"error: {name}=/nonexistent is no ", done.stderr)

    def test_who_stops_a_start_sees_no_python(self):
        (self.folder / "python3").write_text("#!/bin/sh\necho Traceback >&2\nkill -INT $$\n")
        (self.folder / "python3").chmod(0o755)
        done = self.bash("unusable 1", PATH=f"{self.folder}:{os.environ['PATH']}")
        self.assertEqual((done.stdout, done.stderr), ("", ""))

    def test_the_log_of_an_earlier_start_is_not_shown(self):
        (self.folder / "log/ingress.log").write_text("an error of yesterday\n")
        script = """INGRESS_PORT=1 INGRESS_ADMIN_PORT=2
            launch ingress /bin/sh -c 'echo an error of today; exit 4'
            await ingress false"""
        done = self.bash(script)
        self.assertEqual(done.returncode, 1)
        self.assertIn("stopped with exit status 4", done.stderr)
        self.assertIn("an error of today", done.stderr)
        self.assertNotIn("yesterday", done.stderr)


if __name__ == "__main__":
    unittest.main()
