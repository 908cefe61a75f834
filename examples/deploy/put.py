"""`put.py put DIRECTORY RELEASE` makes a release the current one, `put.py back DIRECTORY` the one before it.

Stands for whatever brings your release to its machines: it wants a token, is done at once or not at all, and can go
back.
"""

import hashlib
import hmac
import os
import shutil
import sys
from pathlib import Path

SITE = Path(__file__).parent / "site"


def put(directory: Path, release: str, token: str) -> str:
    """Returns the release's signature. A release that is there already is put again."""
    place = directory / "releases" / release
    shutil.copytree(SITE, place, dirs_exist_ok=True)
    digest = hmac.new(token.encode(), digestmod=hashlib.sha256)
    for path in sorted(SITE.rglob("*")):
        digest.update(path.read_bytes() if path.is_file() else path.name.encode())
    (place / "SIGNATURE").write_text(digest.hexdigest())
    current = directory / "current"
    if current.is_symlink() and current.resolve() != place.resolve():
        switch(directory / "previous", current.readlink())
    switch(current, Path("releases") / release)
    return digest.hexdigest()


def back(directory: Path) -> str:
    """Returns what is current now: empty if there was nothing before."""
    previous = directory / "previous"
    if not previous.is_symlink():
        return ""
    switch(directory / "current", previous.readlink())
    return previous.readlink().name


def switch(link: Path, target: Path) -> None:
    """In one step: whoever looks sees the old one or the new one."""
    fresh = link.with_name(f".{link.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(target)
    fresh.replace(link)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["put", directory, release]:
            print(put(Path(directory), release, os.environ["DEPLOY_TOKEN"]))
        case ["back", directory]:
            print(back(Path(directory)) or "there was no release before")
        case _:
            sys.exit(__doc__)
