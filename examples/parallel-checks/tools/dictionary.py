"""`dictionary.py DATABASE` puts the lists below `words/` into a database. With large lists this takes minutes."""

import dbm.dumb
import sys
from pathlib import Path

LISTS = Path(__file__).parents[1] / "words"


def make(database: Path) -> int:
    database.parent.mkdir(parents=True, exist_ok=True)
    with dbm.dumb.open(str(database), "n") as words:
        for one in sorted(LISTS.glob("*.txt")):
            for word in one.read_text().split():
                words[word] = one.stem
        return len(words)


if __name__ == "__main__":
    print(make(Path(sys.argv[1])), "words")
