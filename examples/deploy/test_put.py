import tempfile
import unittest
from pathlib import Path

import put


class PutTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = Path(folder.name)

    def test_the_newest_release_is_current(self) -> None:
        put.put(self.directory, "one", "secret")
        put.put(self.directory, "two", "secret")
        self.assertEqual((self.directory / "current").readlink().name, "two")

    def test_going_back_makes_the_one_before_current(self) -> None:
        put.put(self.directory, "one", "secret")
        put.put(self.directory, "two", "secret")
        self.assertEqual(put.back(self.directory), "one")
        self.assertTrue((self.directory / "current" / "index.html").exists())

    def test_there_is_no_way_back_from_the_first(self) -> None:
        put.put(self.directory, "one", "secret")
        self.assertEqual(put.back(self.directory), "")

    def test_the_signature_depends_on_the_token(self) -> None:
        self.assertNotEqual(put.put(self.directory, "one", "a"), put.put(self.directory, "one", "b"))
