"""packed.py CHECKOUT PROGRAM FOLDER [npm]: packs the partners' command line and installs it as clients/cli/README.md prints.

PROGRAM is a binary for this machine. pip and npm are told by their own settings to install into FOLDER and to ask nobody.
"""

import hashlib
import json
import os
import pathlib
import platform
import shutil
import signal as signals
import subprocess
import sys
import tarfile

import documents

checkout, program, folder = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
has_npm = sys.argv[4:] == ["npm"]
pack = [sys.executable, "-B", str(checkout / "clients" / "cli" / "pack")]
machine = {"x86_64": "x86_64", "aarch64": "aarch64", "arm64": "aarch64"}[platform.machine()]
here = f"{machine}-unknown-linux-gnu" if sys.platform == "linux" else f"{machine}-apple-darwin"
other = "x86_64-pc-windows-msvc"
version = "1.2.3"

shutil.rmtree(folder, ignore_errors=True)
shells = folder / "completions"
shells.mkdir(parents=True)
# A release has no symbols either, and without them packing takes a third of the time.
subprocess.run(["strip", "-o", folder / "esim-partner", program], check=True)
program = folder / "esim-partner"
# What the package for another machine holds is not run.
unused = folder / "unused"
unused.write_bytes(b"program")
for shell in ("bash", "zsh", "fish"):
    completions = subprocess.run([program, "completions", shell], check=True, capture_output=True).stdout
    (shells / f"esim-partner.{shell}").write_bytes(completions)


def packed(into: str, *arguments: str) -> pathlib.Path:
    command = [*pack, "--version", version, "--completions", str(shells), "--into", str(folder / into), *arguments]
    subprocess.run([*command, f"{here}={program}"], check=True, stdout=subprocess.DEVNULL)
    return folder / into


def refused(remedy: str, *arguments: str) -> None:
    ended = subprocess.run([*pack, *arguments], capture_output=True, text=True)
    assert ended.returncode == 2 and remedy in ended.stderr, (arguments, ended.stderr)
    assert not (folder / "refused").exists(), arguments


common = ["--completions", str(shells), "--into", str(folder / "refused")]
refused("not a version such as", "--version", "v1", *common, f"{here}={program}")
refused("the platforms are", "--version", version, *common, f"sparc={program}")
refused("there is no file", "--version", version, *common, f"{here}=missing")
refused("an npm package holds one", "--version", version, *common, f"{here}={program}", f"{here}={program}")
refused("not a scope such as", "--version", version, *common, "--scope", "acme", f"{here}={program}")
refused("there is no folder", "--version", version, "--completions", str(folder / "nothing"), *common[2:], f"{here}={program}")

files = packed("packages")
names = sorted(path.name for path in files.iterdir())
again = packed("again")
for name in names:
    assert (files / name).read_bytes() == (again / name).read_bytes(), f"{name} differs from one run to the next"
sums = dict(reversed(line.split("  ")) for line in (files / "SHA256SUMS").read_text().splitlines())
assert sorted(sums) == [name for name in names if name != "SHA256SUMS"], names
for name, expected in sums.items():
    assert hashlib.sha256((files / name).read_bytes()).hexdigest() == expected, name


def package_json(path: pathlib.Path) -> dict[str, object]:
    with tarfile.open(path) as tar:
        text = tar.extractfile("package/package.json")
        assert text
        return json.load(text)


assert "optionalDependencies" not in package_json(files / f"esim-partner-cli-{version}.tgz"), "npm would ask for a name that is not ours"
scoped = packed("scoped", "--scope", "@acme", "--name", "acme-esim", f"{other}={unused}")
main = package_json(scoped / f"acme-acme-esim-{version}.tgz")
dependencies = main["optionalDependencies"]
assert main["name"] == "@acme/acme-esim" and isinstance(dependencies, dict) and len(dependencies) == 2, main
for name in dependencies:
    part = package_json(scoped / f"{name.removeprefix('@').replace('/', '-')}-{version}.tgz")
    assert part["name"] == name and part["version"] == dependencies[name] == version, part
assert any("win_amd64" in path.name for path in scoped.iterdir())

environment = {
    **os.environ,
    "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
    "PIP_NO_INDEX": "1",
    "PIP_QUIET": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_TARGET": str(folder / "pip"),
    "npm_config_prefix": str(folder / "npm"),
    "npm_config_offline": "true",
    "npm_config_audit": "false",
    "npm_config_fund": "false",
    "npm_config_update_notifier": "false",
}
install, verify, _ = documents.blocks(checkout / "clients" / "cli" / "README.md")
for command in [*verify, *install]:
    if command.startswith("npm ") and not has_npm:
        continue
    print("$", command, flush=True)
    subprocess.run(["bash", "-c", command], cwd=files, env=environment, check=True, stdout=subprocess.DEVNULL)
installed = [folder / "pip" / "bin" / "esim-partner", files / f"esim-partner-{version}-{here}" / "esim-partner"]
if has_npm:
    installed.append(folder / "npm" / "bin" / "esim-partner")
expected = subprocess.run([program, "--version"], check=True, capture_output=True).stdout
for path in installed:
    assert subprocess.run([path, "--version"], check=True, capture_output=True).stdout == expected, path
    # What the program says, and its exit status, reach whoever has called it.
    wrong = subprocess.run([path, "nonsense"], capture_output=True, text=True)
    assert wrong.returncode == 2 and "unrecognized" in wrong.stderr, (path, wrong)

# Whoever ends what was started ends the program: nobody writes to its standard error afterwards.
# A test that was begun in the background may ignore signals, and so would what it starts.
ENDS = (signals.SIGTERM, signals.SIGINT, signals.SIGHUP)


def heed_signals():
    for one in ENDS:
        signals.signal(one, signals.SIG_DFL)


nowhere = {"BASE_URL": "http://127.0.0.1:9", "ACCESS_KEY": "ak", "SECRET_KEY": "c2VjcmV0LWtleQ=="}
for path in installed:
    for signal in ENDS:
        listen = [path, "listen", "--forward-to", "http://127.0.0.1:9/"]
        running = subprocess.Popen(
            listen, env={**environment, **nowhere}, stderr=subprocess.PIPE, preexec_fn=heed_signals
        )
        assert running.stderr
        try:
            assert b"trying again" in running.stderr.readline(), path
            running.send_signal(signal)
            running.communicate(timeout=10)
            assert running.returncode == -signal, (path, signal, running.returncode)
        finally:
            running.kill()

if has_npm:
    for path in (folder / "npm" / "lib" / "node_modules").glob("esim-partner-cli-*"):
        shutil.rmtree(path)
    wrong = subprocess.run([installed[-1], "--version"], capture_output=True, text=True)
    assert wrong.returncode == 1 and "Install esim-partner-cli-" in wrong.stderr, wrong
