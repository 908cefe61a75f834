import unittest

from greet import greet


class GreetTest(unittest.TestCase):
    def test_nobody_is_greeted_twice(self) -> None:
        self.assertEqual(greet(["Ada", "Ada"]), ["Hello, Ada!"])
