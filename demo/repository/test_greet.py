import unittest

from greet import greet


class Greets(unittest.TestCase):
    def test_the_name_is_in_the_greeting(self) -> None:
        self.assertIn("main", greet("main"))


if __name__ == "__main__":
    unittest.main()
