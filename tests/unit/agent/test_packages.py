"""What hostile code may have put among packages does not get out, and what is kept is known to be whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kici.agent import packages
from kici.agent.errors import PreparationFailed


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "a" / "b").mkdir(parents=True)
    (tmp_path / "tree" / "a" / "module.py").write_text("x = 1\n")
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("place", "target"),
    [
        ("link", "/etc/passwd"),
        ("link", "../outside"),
        ("a/b/link", "s/../../y"),
        ("a/link", "../../outside"),
        ("link", "./a"),
    ],
)
def test_a_link_that_leaves_or_may_leave_the_packages_is_refused(tree: Path, place: str, target: str) -> None:
    (tree / place).symlink_to(target)
    with pytest.raises(PreparationFailed, match="a link that leaves"):
        packages.seal(tree)


def test_a_link_inside_stays_and_modes_are_narrowed(tree: Path) -> None:
    (tree / "a" / "b" / "link").symlink_to("../module.py")
    (tree / "a" / "module.py").chmod(0o4777)
    packages.seal(tree)
    assert (tree / "a" / "module.py").stat().st_mode & 0o7777 == 0o755
    assert (tree / "a" / "b" / "link").read_text() == "x = 1\n"


def test_what_is_no_file_is_refused(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    with pytest.raises(PreparationFailed, match="which is no file"):
        packages.seal(tree)


def test_an_odd_name_is_refused(tree: Path) -> None:
    (tree / "two\nlines").touch()
    with pytest.raises(PreparationFailed, match="odd name"):
        packages.seal(tree)


@pytest.mark.parametrize("damage", ["missing", "cut", "touched", "link", "manifest"])
def test_damage_is_found(tree: Path, tmp_path: Path, damage: str) -> None:
    packages.seal(tree)
    place = tmp_path / "kept"
    packages.keep(tree, place)
    assert packages.check(place) is not None
    module = place / "packages" / "a" / "module.py"
    match damage:
        case "missing":
            module.unlink()
        case "cut":
            os.truncate(module, 1)
        case "touched":
            os.utime(module, (1, 1))
        case "link":
            module.unlink()
            module.symlink_to("b")
        case "manifest":
            (place / "manifest.json").write_bytes(b"")
    assert packages.check(place) is None


@pytest.mark.parametrize("link", [True, False])
def test_what_is_handed_over_is_the_same_tree(tree: Path, tmp_path: Path, link: bool) -> None:
    (tree / "a" / "b" / "link").symlink_to("../module.py")
    packages.seal(tree)
    manifest = packages.keep(tree, tmp_path / "kept")
    (tmp_path / "job").mkdir()
    packages.hand_over(tmp_path / "kept", manifest, tmp_path / "job", link=link)
    module = tmp_path / "job" / "a" / "module.py"
    assert module.read_text() == "x = 1\n"
    assert (module.stat().st_ino == (tmp_path / "kept/packages/a/module.py").stat().st_ino) is link
    assert os.readlink(tmp_path / "job" / "a" / "b" / "link") == "../module.py"
