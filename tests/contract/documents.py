"""The commands that documents print, for the tests that run them."""

import pathlib
import re
import subprocess


def _is_whole(text: str) -> bool:
    """Whether bash would not wait for a further line."""
    started = re.search(r"<<'?(\w+)'?", text)
    if started and not re.search(rf"^{started[1]}$", text, re.MULTILINE):
        return False
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0


def blocks(document: pathlib.Path) -> list[list[str]]:
    """The commands of each block of shell code, without the comments after them."""
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL):
        commands, text = [], ""
        for line in block.splitlines():
            text = f"{text}\n{line}" if text else line
            if _is_whole(text):
                commands.append(re.sub(r"  +# .*$", "", text, count=1, flags=re.MULTILINE).strip())
                text = ""
        assert not text, f"{document}: bash cannot read {text!r}"
        found.append(commands)
    return found


def inline(document: pathlib.Path, programs: tuple[str, ...]) -> list[str]:
    """The commands of these programs that stand in the text between backticks."""
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    codes = re.findall(r"`([^`\n]+)`", prose)
    return [code for code in codes if code.startswith(tuple(f"{program} " for program in programs))]
