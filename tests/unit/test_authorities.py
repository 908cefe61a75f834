"""Which authorities an HTTP client believes."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kici.admin.connection import Connection
from kici.admin.errors import AdminError
from kici.authorities import tls_context
from kici.cli.client import Client, ClientError
from kici.errors import KiciError
from tests.support.certificates import authority


class Nothing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return tmp_path / "bundle.pem"


@pytest.fixture
def url(bundle: Path) -> Iterator[str]:
    """Of a server whose certificate is by the authority of the bundle."""
    with HTTPServer(("127.0.0.1", 0), Nothing) as server:
        server.socket = authority(bundle).wrap_socket(server.socket, server_side=True)
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_commands_believe_the_authorities_that_the_environment_names_and_no_others(
    url: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Client(url, "t") as client, pytest.raises(ClientError, match="certificate"):
        client.get("/x", dict)
    with pytest.raises(AdminError, match="certificate"):
        Connection(url, "t").get("/x", dict)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with Client(url, "t") as client:
        assert client.get("/x", dict) == {}
    assert Connection(url, "t").get("/x", dict) == {}


def test_a_client_without_tls_knows_no_authority_and_would_believe_nobody() -> None:
    context = tls_context("http://127.0.0.1:4000")
    assert context.get_ca_certs() == []
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert tls_context("HTTPS://host") is tls_context("https://other")


@pytest.mark.parametrize("content", [None, b"no certificate"])
def test_a_bundle_that_is_none_is_told_by_its_variable_also_when_others_were_read(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    tls_context("https:")
    if content is not None:
        bundle.write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(bundle))
    with Client("https://127.0.0.1:9", "t") as client, pytest.raises(KiciError, match=r"SSL_CERT_FILE is .*unset it"):
        client.get("/x", dict)
    with pytest.raises(KiciError, match="SSL_CERT_FILE"):
        Connection("https://127.0.0.1:9", "t").get("/x", dict)
