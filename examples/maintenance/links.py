"""Which relative links of the Markdown files below a directory lead nowhere: `path:line: target`."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def broken(root: Path) -> Iterator[tuple[Path, int, str]]:
    for page in sorted(root.rglob("*.md")):
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for target in LINK.findall(line):
                if not (page.parent / target).exists():
                    yield page, number, target


if __name__ == "__main__":
    for page, number, target in broken(Path(sys.argv[1])):
        print(f"{page}:{number}: {target}")
