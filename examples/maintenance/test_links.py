import tempfile
import unittest
from pathlib import Path

from links import broken


class BrokenTest(unittest.TestCase):
    def test_a_link_that_leads_nowhere_is_told_with_its_line(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "page.md")
            page.write_text("[here](page.md) [there](https://example.com)\n[gone](gone.md#part)\n")
            self.assertEqual(list(broken(Path(folder))), [(page, 2, "gone.md")])
