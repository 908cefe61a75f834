import json

from shared import price


def offer(name: str, cents: int) -> str:
    return json.dumps({"name": name, "price": price(cents)}, ensure_ascii=False)
