from html import escape

from shared import price


def row(name: str, cents: int) -> str:
    return f"<tr><td>{escape(name)}</td><td>{price(cents)}</td></tr>"
