from __future__ import annotations

from kici.compiler.sources import Sources


def closure(path: str, **files: str) -> tuple[str, ...]:
    return Sources({name.replace("__", "/") + ".py": text.encode() for name, text in files.items()}).closure(path)


def test_every_way_to_import_is_followed() -> None:
    found = closure(
        "workflows/ci.py",
        workflows__ci="import lib.a, os\nfrom lib import b\nfrom . import c\nfrom .deep.d import x\nif c:\n  import e",
        workflows__c="from workflows import ci",
        workflows__deep__d="from .. import up",
        workflows__up="",
        workflows__unused="",
        lib__a="def f():\n    from lib.lazy import g",
        lib__b="",
        lib__lazy="",
        e="",
    )
    assert found == (
        "e.py",
        "lib/a.py",
        "lib/b.py",
        "lib/lazy.py",
        "workflows/c.py",
        "workflows/ci.py",
        "workflows/deep/d.py",
        "workflows/up.py",
    )


def test_packages_on_the_way_belong_to_it() -> None:
    files = {"lib/__init__.py": b"from .extra import y", "lib/extra.py": b"", "lib/a.py": b"", "ci.py": b"import lib.a"}
    assert Sources(files).closure("ci.py") == ("ci.py", "lib/__init__.py", "lib/a.py", "lib/extra.py")


def test_a_file_that_is_no_python_is_left_to_the_import() -> None:
    sources = Sources({"a.py": b"x = (\nctx.sh(f'{x}')", "b.py": b"\xff\xfe"})
    assert sources.closure("a.py") == ("a.py",)
    assert list(sources.unsafe_commands()) == []
