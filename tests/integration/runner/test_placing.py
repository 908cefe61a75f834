from __future__ import annotations

import os
from pathlib import Path

import pytest

from kici.runner.placing import lay_over, replace
from kici.runner.program import ArtifactFailed


@pytest.fixture
def top(tmp_path: Path) -> Path:
    (tmp_path / "top").mkdir()
    return tmp_path / "top"


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """What was unpacked."""
    (tmp_path / "new/out/sub").mkdir(parents=True)
    (tmp_path / "new/out/a").write_text("new")
    (tmp_path / "new/out/sub/b").write_text("new")
    return tmp_path / "new"


def tree(path: Path) -> dict[str, str]:
    return {str(one.relative_to(path)): one.read_text() for one in path.rglob("*") if one.is_file()}


# ── in place of what is there ────────────────────────────────────────────────────────────────────────────────────────


def test_exactly_the_path_is_replaced_and_what_stands_beside_it_stays(top: Path, new: Path) -> None:
    (top / "deep/out").mkdir(parents=True)
    (top / "deep/out/stale").write_text("old")
    (top / "deep/beside").write_text("old")
    replace([(str(new / "out"), str(top / "deep/out"), str(top))])
    assert tree(top) == {"deep/beside": "old", "deep/out/a": "new", "deep/out/sub/b": "new"}
    assert sorted(os.listdir(top / "deep")) == ["beside", "out"]


def test_when_one_of_several_cannot_be_placed_nothing_has_changed(top: Path, new: Path) -> None:
    (top / "out").mkdir()
    (top / "out/a").write_text("old")
    (new / "second").write_text("new")
    (top / "elsewhere").symlink_to("/etc")
    with pytest.raises(ArtifactFailed, match="symbolic link"):
        replace(
            [
                (str(new / "out"), str(top / "out"), str(top)),
                (str(new / "second"), str(top / "elsewhere/second"), str(top)),
            ]
        )
    assert tree(top / "out") == {"a": "old"}
    assert sorted(os.listdir(top)) == ["elsewhere", "out"]


def test_renames_are_taken_back_when_a_later_one_fails(top: Path, new: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (new / "second").write_text("new")
    for name in ("out", "second"):
        (top / name).write_text("old")
    rename = os.rename

    def fails(source: str, target: str) -> None:
        if target == str(top / "second") and source.startswith(str(new)):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="Input/output"):
        replace([(str(new / name), str(top / name), str(top)) for name in ("out", "second")])
    assert tree(top) == {"out": "old", "second": "old"}
    assert sorted(os.listdir(top)) == ["out", "second"]


def test_a_directory_that_nobody_may_write_is_moved_and_replaced(top: Path, new: Path) -> None:
    (new / "out").chmod(0o555)
    for _ in range(2):
        replace([(str(new / "out"), str(top / "out"), str(top))])
        assert (top / "out").stat().st_mode & 0o777 == 0o555
        os.rename(top / "out", new / "out")
        (top / "out").mkdir(0o555)


def test_it_is_copied_where_it_lies_on_another_file_system(top: Path, new: Path) -> None:
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == top.stat().st_dev:
        pytest.skip("there is no second file system")
    place = shared / f"kici-test-{os.getpid()}"
    place.mkdir()
    try:
        replace([(str(new / "out"), str(place / "out"), str(place))])
        assert tree(place) == {"out/a": "new", "out/sub/b": "new"}
        assert os.listdir(place) == ["out"]
    finally:
        import shutil

        shutil.rmtree(place)


# ── over what is there ───────────────────────────────────────────────────────────────────────────────────────────────


def test_files_go_over_those_of_their_names_and_others_stay(top: Path, new: Path) -> None:
    (top / "out").mkdir()
    (top / "out/a").write_text("old")
    (top / "out/other").write_text("old")
    (new / "out/sub").chmod(0o555)
    (new / "line\nbreak").write_text("odd")
    assert lay_over(str(new), str(top)) == ["line\nbreak", "out/a", "out/sub/b"]
    assert tree(top) == {"line\nbreak": "odd", "out/a": "new", "out/other": "old", "out/sub/b": "new"}
    assert (top / "out/sub").stat().st_mode & 0o777 == 0o555


def test_a_directory_that_is_not_there_goes_whole_and_one_that_is_there_keeps_its_own(top: Path, new: Path) -> None:
    (top / "out").mkdir(0o750)
    there = (top / "out").stat()
    (new / "out/sub/none").mkdir()
    (new / "out/sub/etc").symlink_to("/etc")
    odd = new / "out/sub" / os.fsdecode(b"\xff\n-rf")
    odd.write_text("new")
    whole = (new / "out/sub").stat()
    names = sorted(f"out/sub/{name}" for name in ("b", "etc", odd.name))
    assert lay_over(str(new), str(top)) == ["out/a", *names]
    assert ((top / "out").stat().st_ino, (top / "out").stat().st_mode) == (there.st_ino, there.st_mode)
    assert (top / "out/sub").stat().st_ino == whole.st_ino
    assert sorted(os.listdir(top / "out/sub")) == sorted(["b", "etc", odd.name, "none"])
    assert os.readlink(top / "out/sub/etc") == "/etc"


def test_a_link_that_is_there_is_replaced_and_never_written_through(top: Path, new: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("old")
    (top / "out").mkdir()
    (top / "out/a").symlink_to(tmp_path / "outside")
    lay_over(str(new), str(top))
    assert (tmp_path / "outside").read_text() == "old"
    assert tree(top) == {"out/a": "new", "out/sub/b": "new"}
    assert not (top / "out/a").is_symlink()


@pytest.mark.parametrize("kind", ["link", "dangling", "file", "directory", "for a link", "deep link"])
def test_nothing_is_laid_over_what_is_of_another_kind(top: Path, new: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "outside").mkdir()
    match kind:
        case "link":
            (top / "out").symlink_to(tmp_path / "outside")
        case "dangling":
            (top / "out").symlink_to(tmp_path / "nothing")
        case "file":
            (top / "out").write_text("old")
        case "directory":
            (top / "out/a").mkdir(parents=True)
        case "for a link":
            (new / "link").symlink_to(tmp_path / "outside")
            (top / "link").mkdir()
        case "deep link":
            (top / "out").mkdir()
            (top / "out/sub").symlink_to(tmp_path / "outside")
    before = sorted(top.rglob("*"))
    with pytest.raises(ArtifactFailed, match="in the archive"):
        lay_over(str(new), str(top))
    assert sorted(top.rglob("*")) == before
    assert "new" not in tree(top).values()
    assert os.listdir(tmp_path / "outside") == []
    assert not (tmp_path / "nothing").exists()
