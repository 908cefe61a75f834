"""Jobs that check out beside an agent's mirrors, as steps find their repository; and what can befall a mirror."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from kici.agent import checkout, kept_packs, workspace
from kici.agent.git import Remote, basic
from kici.agent.kept_packs import MANIFEST
from kici.agent.mirrors import NAME, Mirrors
from kici.agent.workspace import Owner, Workspace
from kici.engine.lockfile import LockCheckout
from kici.wire.agent import Checkout
from tests.support.kici_repository import KiciRepository
from tests.support.web import Web

IS_ROOT = os.geteuid() == 0
OWNERS = [None, Owner(60_999, 60_999)] if IS_ROOT else [None]
PASSWORD = basic("", "hunter2")
BIG = 200_000


class Said(list[str]):
    def __call__(self, line: str) -> None:
        self.append(line)

    @property
    def repairs(self) -> list[str]:
        return [line for line in self if "is broken" in line]


@asynccontextmanager
async def checked_out(
    base: Path,
    web: Web,
    kept: Mirrors,
    sha: str,
    *,
    owner: Owner | None = None,
    trusted: bool = True,
    authorization: str = "",
    options: bool | LockCheckout = True,
    said: Callable[[str], None] = print,
    workflow_sha: str = "",
    slot: int = 0,
) -> AsyncIterator[Workspace]:
    (base / "work").mkdir(mode=0o711, exist_ok=True)
    wanted = Checkout(f"{web.url}/git/repo/.git", sha, workflow_sha or sha, "main", trusted=trusted)
    source = Remote(wanted.url, authorization)
    with workspace.opened(base / "work", slot, owner) as space:
        async with asyncio.timeout(60):
            git = await checkout.fetch(space, source, wanted, kept, said)
            await checkout.work_tree(git, source, wanted, options, kept, said)
        yield space


def places(base: Path) -> list[Path]:
    return sorted((base / "work" / NAME).glob("*/*"))


def git(space: Workspace, *arguments: str) -> str:
    """As a step runs it."""
    done = subprocess.run(
        [*as_user(space.owner), "git", "-c", f"safe.directory={space.src}", "-C", str(space.src), *arguments],
        env={"PATH": os.environ["PATH"], "HOME": str(space.home), "GIT_CONFIG_NOSYSTEM": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def as_user(owner: Owner | None) -> list[str]:
    if owner is None:
        return []
    return ["setpriv", "--reuid", str(owner.uid), "--regid", str(owner.gid), "--clear-groups", "--bounding-set=-all"]


def contents(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.iterdir()}


def objects(place: Path) -> set[str]:
    """Names of all objects that a mirror holds, as git itself reads them."""
    names: set[str] = set()
    for index in place.glob("*.idx"):
        listing = subprocess.run(["git", "show-index"], input=index.read_bytes(), capture_output=True, check=True)
        names |= {line.split()[1] for line in listing.stdout.decode().splitlines()}
    return names


# ── damage ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def the(place: Path, kind: str) -> Path:
    found = max(place.glob(f"*.{kind}"), key=lambda path: path.stat().st_size)
    found.chmod(0o644)
    return found


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def append(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"x")


def zero(file: Path) -> None:
    file.write_bytes(bytes(file.stat().st_size))


def flip(file: Path) -> None:
    """One bit in the middle, at the same time as before."""
    about = file.stat()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


def be_another(place: Path) -> None:
    """A pack that is whole, and not the one that is listed."""
    file = the(place, "pack")
    other = KiciRepository(place.parents[3] / f"other-{os.urandom(4).hex()}", {"build": ["true"]})
    other.git("repack", "-a", "-d", "-q")
    (pack,) = (other.root / ".git/objects/pack").glob("*.pack")
    file.write_bytes(pack.read_bytes())


def list_is_a_directory(place: Path) -> None:
    (place / MANIFEST).unlink()
    (place / MANIFEST).mkdir()


def be_a_file(place: Path) -> None:
    shutil.rmtree(place)
    place.write_text("")


def name_a_commit_that_is_not_there(place: Path) -> None:
    manifest = kept_packs.read(place)
    assert manifest
    kept_packs.write(place, msgspec.structs.replace(manifest, tips=("0" * 39 + "1",)))


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a pack is cut": lambda place: cut(the(place, "pack")),
    "a pack is empty": lambda place: os.truncate(the(place, "pack"), 0),
    "a pack is zeros": lambda place: zero(the(place, "pack")),
    "a bit of a pack": lambda place: flip(the(place, "pack")),
    "a pack is longer": lambda place: append(the(place, "pack")),
    "a pack is missing": lambda place: the(place, "pack").unlink(),
    "a pack is another": be_another,
    "an index is cut": lambda place: cut(the(place, "idx")),
    "an index is zeros": lambda place: zero(the(place, "idx")),
    "a bit of an index": lambda place: flip(the(place, "idx")),
    "an index is missing": lambda place: the(place, "idx").unlink(),
    "the manifest is cut": lambda place: cut(place / MANIFEST),
    "the manifest is empty": lambda place: os.truncate(place / MANIFEST, 0),
    "a bit of the manifest": lambda place: flip(place / MANIFEST),
    "the manifest is a directory": list_is_a_directory,
    "a tip is missing": name_a_commit_that_is_not_there,
    "it is a file": be_a_file,
}
