"""The test vectors of the partner guide, which the package's tests read instead of repeating them."""

import os
import pathlib
import re


def vector(name: str) -> dict[str, str]:
    """The lines ``key: value`` of a vector. ``GUIDE`` names a file with the guide and the reference."""
    guide = pathlib.Path(os.environ["GUIDE"]).read_text()
    found = re.search(rf"<!-- {name} vector -->\n```\n(.*?)```", guide, re.DOTALL)
    assert found, f"the guide has no {name} vector"
    return dict(line.split(": ", 1) for line in found[1].splitlines())
