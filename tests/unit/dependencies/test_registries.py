from __future__ import annotations

import pytest

from kici import index_urls
from kici.dependencies import registries
from kici.dependencies.errors import DependenciesInvalid
from kici.dependencies.registries import Found

URL = "https://packages.example.com/simple"


def project(*indexes: tuple[str, str]) -> bytes:
    return "".join(
        f'[[tool.uv.index]]\n{f"name = {chr(34)}{name}{chr(34)}" if name else ""}\nurl = "{url}"\n'
        for name, url in indexes
    ).encode()


def test_the_token_goes_to_the_index_with_this_address_under_its_name() -> None:
    wanted = project(("public", "https://pypi.org/simple"), ("in-ner.x", URL + "/"))
    secrets = {"TOKEN": "t0ken", "OTHER": "o"}
    assert registries.opened(wanted, [Found(URL, "TOKEN")], secrets) == {
        "UV_INDEX_IN_NER_X_USERNAME": "__token__",
        "UV_INDEX_IN_NER_X_PASSWORD": "t0ken",
    }
    user = {"UV_INDEX_IN_NER_X_USERNAME": "me"}
    assert registries.opened(wanted, [Found(URL, "TOKEN")], secrets | user)["UV_INDEX_IN_NER_X_USERNAME"] == "me"


def test_a_token_that_is_not_there_is_named_with_its_registry() -> None:
    wanted = project(("inner", URL))
    with pytest.raises(DependenciesInvalid, match=f"registry {URL}: its token, the secret TOKEN, is not among"):
        registries.opened(wanted, [Found(URL, "TOKEN")], {"TOKEN": ""})
    assert registries.opened(wanted, [Found(URL, "TOKEN")], {}, lenient=True) == {}


@pytest.mark.parametrize(
    ("indexes", "registry", "said"),
    [
        ((), Found(URL, "T"), f'no index of .kici/pyproject.toml has this address: write .*url = "{URL}"'),
        ((("inner", "https://other.example.com/simple"),), Found(URL, "T"), "no index"),
        ((("inner", URL + "2"),), Found(URL, "T"), "no index"),
        ((("inner", URL.replace("https", "http")),), Found(URL, "T"), "no index"),
        ((("", URL),), Found(URL, "T"), "its index has no name there"),
        ((("inner", URL),), Found(URL, "T", "other"), "its index is called 'inner' there"),
        ((("in-ner", URL), ("in_ner", "https://evil.example.com")), Found(URL, "T"), "takes the indexes .* for one"),
        ((("inner", "http://a.example.com"),), Found("http://a.example.com", "T"), "is not encrypted"),
    ],
)
def test_a_registry_that_no_index_answers_to_is_refused_with_the_way_out(
    indexes: tuple[tuple[str, str], ...], registry: Found, said: str
) -> None:
    with pytest.raises(DependenciesInvalid, match=said):
        registries.opened(project(*indexes), [registry], {"T": "t0ken"})


def test_a_project_that_cannot_be_read_is_told() -> None:
    with pytest.raises(DependenciesInvalid, match="cannot be read"):
        registries.problem(b"[", Found(URL, "T"))


@pytest.mark.parametrize(
    "url",
    [URL, "https://h:8443/", "http://localhost:8080/x", "http://127.9.9.9/x", "http://[::1]:1/x", "http://box.local/x"],
)
def test_an_address_that_may_get_a_token(url: str) -> None:
    assert index_urls.problem(url) == ""


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://packages.example.com/simple", "not encrypted"),
        ("http://10.0.0.1/", "not encrypted"),
        ("http://localhost.example.com/", "not encrypted"),
        ("http://127.0.0.1.example.com/", "not encrypted"),
        ("ftp://h/x", "write https"),
        ("packages.example.com", "write https"),
        ("https:///x", "write https"),
        ("https://me:token@h/x", "holds a user or password"),
        ("https://h/x?token=1", "query"),
        ("https://h/a b", "is no address"),
        ("https://h:99999/", "is no address"),
        ("https://h\\@evil/", "is no address"),
    ],
)
def test_an_address_that_may_not(url: str, said: str) -> None:
    assert said in index_urls.problem(url)


def test_a_slash_at_the_end_and_the_usual_port_say_nothing() -> None:
    assert index_urls.same("https://H:443/simple/", "https://h/simple")
    assert not index_urls.same("https://h/simple", "https://h:444/simple")
    assert not index_urls.same("https://h/a", "https://h/b")
