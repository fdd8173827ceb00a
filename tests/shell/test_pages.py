#!/usr/bin/env python3
"""Each rule of pages.py finds its fault in a small repository, and finds nothing where there is none."""

import subprocess
import tempfile
import unittest
from pathlib import Path

import pages


class Pages(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        subprocess.run(["git", "init", "--quiet"], cwd=self.root, check=True)
        for name in pages.PAGES:
            self.write(name, "# A page\n")

    def write(self, name, text):
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        subprocess.run(["git", "add", "--force", name], cwd=self.root, check=True)

    def finds(self, name, text, fault):
        kept = (self.root / name).read_text() if (self.root / name).exists() else None
        self.write(name, text)
        wrong, _ = pages.check(self.root)
        self.assertTrue(len(wrong) == 1 and fault in wrong[0], (fault, wrong))
        self.write(name, kept if kept is not None else "# A page\n")

    def test_what_is_right(self):
        self.write("docs/why.md", "# Why\n\n## A night's worth, [once](why.md)\n\n<a id=\"here\"></a>See [it](#here) and [that](#a-nights-worth-once).\n")
        self.write("docs/more.md", "[why](why.md#here), [all](../README.md), [web](https://example.com/#x), `[no](link.md)`\n```\n[no](link.md)\n```\n")
        wrong, total = pages.check(self.root)
        self.assertEqual(wrong, [])
        self.assertGreater(total, 3 * len(pages.PAGES))

    def test_a_page_beyond_its_readers_patience(self):
        for name, most in pages.PAGES.items():
            self.finds(name, "word " * (most + 1), f"{name} has {most + 1} words; its reader has patience for {most}")

    def test_a_part_of_a_page(self):
        for (name, heading), most in pages.PARTS.items():
            text = f"# A page\n\n{heading}\n\n{'word ' * most}\n\n## Older\n\nword\n"
            self.finds(name, text, f"has {most + len(heading.split())} words; its reader has patience for {most}")

    def test_a_decision(self):
        self.finds("docs/decisions/0001-one.md", "word " * (pages.DECISION + 1), "a decision fits on a page")

    def test_all_pages_together(self):
        self.finds("docs/other.md", "word " * pages.ALL, "all pages together have")

    def test_a_page_that_is_gone(self):
        (self.root / "docs/why.md").unlink()
        wrong, _ = pages.check(self.root)
        self.assertEqual(wrong, ["tests/shell/pages.py names docs/why.md, which is not there"])

    def test_links(self):
        self.finds("docs/other.md", "[gone](gone.md)", "docs/other.md links to gone.md, which is not there")
        self.finds("docs/other.md", "# One\n\n[two](#two)", "docs/other.md links to #two, which is no heading there")
        self.finds("docs/other.md", "[two](why.md#two)", "docs/other.md links to why.md#two, which is no heading there")


if __name__ == "__main__":
    unittest.main()
