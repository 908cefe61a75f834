"""`spelling.py DATABASE DIRECTORY`: words of Markdown files that the dictionary does not have; 1 if there are some."""

import dbm.dumb
import re
import sys
from pathlib import Path


def unknown(database: Path, directory: Path) -> list[str]:
    with dbm.dumb.open(str(database), "r") as words:
        return [
            f"{page}:{number}: {word}"
            for page in sorted(directory.rglob("*.md"))
            for number, line in enumerate(page.read_text().splitlines(), 1)
            for word in re.findall(r"[A-Za-z]+", line)
            if word.lower().encode() not in words
        ]


if __name__ == "__main__":
    found = unknown(Path(sys.argv[1]), Path(sys.argv[2]))
    print("\n".join(found) or "every word is known")
    sys.exit(1 if found else 0)
