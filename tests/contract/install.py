"""install.py CHECKOUT python|typescript TARGET: runs the install commands that the README of a package prints.

The first block is for somebody who got the file, so it runs in the folder that holds it; the second one is for a
checkout. TARGET gets what the first one installs. pip and npm are told by their own settings where to install, and that
what the package depends on is here already.
"""

import os
import pathlib
import shutil
import subprocess
import sys

import documents

checkout, package, target = pathlib.Path(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
readme = checkout / "clients" / package / "README.md"
from_file, from_checkout = documents.blocks(readme)
assert from_checkout[0] == "clients/build", from_checkout
environment = {
    **os.environ,
    "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    "PIP_NO_DEPS": "1",
    "PIP_NO_INDEX": "1",
    "PIP_QUIET": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    # openapi-fetch was fetched before, with the tools.
    "npm_config_prefer_offline": "true",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
}


def run(command: str, folder: pathlib.Path, into: pathlib.Path) -> None:
    print("$", command, flush=True)
    if command.startswith("npm "):
        (folder / "package.json").write_text('{"private": true}\n')
    subprocess.run(["bash", "-c", command], cwd=folder, env={**environment, "PIP_TARGET": str(into)}, check=True)


built = checkout / ".local" / "clients"
if not built.exists():
    run(from_checkout[0], checkout, target)
for command in from_checkout[1:]:
    run(command, checkout, checkout / ".local" / "installed")
target.mkdir(parents=True, exist_ok=True)
for file in (built / "dist").iterdir():
    shutil.copy(file, target)
for command in from_file:
    run(command, target, target)
for program in (["node", "--input-type=module", "-e", 'import { Partner } from "esim-partner"; Partner.name'],):
    if package == "typescript":
        for folder in (target, checkout):
            subprocess.run(program, cwd=folder, check=True)
