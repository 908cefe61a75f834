"""What the tests are about."""


def words(text: str) -> list[str]:
    return text.split()


def longest(text: str) -> str:
    return max(words(text), key=len, default="")


def initials(text: str) -> str:
    return "".join(word[0].upper() for word in words(text))
