"""Which proxy a request takes, and which authorities it trusts."""

from pathlib import Path

import pytest
from anyio import to_thread

from tests.http_client.authority import Authority, needs_openssl
from tidegate.config import NetworkSettings
from tidegate.errors import Misconfigured
from tidegate.http_client import Network
from tidegate.security import Secret

pytestmark = pytest.mark.anyio

HTTPS, HTTP, ALL = "http://secure:1", "http://plain:2", "http://all:3"


@pytest.mark.parametrize(
    ("environment", "url", "proxy"),
    [
        ({}, "https://a.example", None),
        ({"HTTPS_PROXY": HTTPS, "HTTP_PROXY": HTTP}, "https://a.example/v1", HTTPS),
        ({"HTTPS_PROXY": HTTPS, "HTTP_PROXY": HTTP}, "http://a.example/v1", HTTP),
        ({"https_proxy": HTTPS, "HTTPS_PROXY": "http://other:1"}, "https://a.example", HTTPS),
        ({"ALL_PROXY": ALL}, "http://a.example", ALL),
        ({"ALL_PROXY": ALL, "HTTP_PROXY": HTTP}, "http://a.example", HTTP),
        ({"HTTPS_PROXY": "proxy:3128"}, "https://a.example", "http://proxy:3128"),
        ({"HTTPS_PROXY": " "}, "https://a.example", None),
        ({"ALL_PROXY": ALL}, "http://localhost:11434", None),
        ({"ALL_PROXY": ALL}, "http://127.0.0.1:11434", None),
        ({"ALL_PROXY": ALL}, "http://[::1]:11434", None),
    ],
)
def test_the_environment_names_the_proxy(environment: dict[str, str], url: str, proxy: str | None) -> None:
    """By scheme; never for this machine, where models without a key may run."""
    assert Network(environment=environment).proxy_for(url) == proxy


@pytest.mark.parametrize(
    ("exceptions", "url", "direct"),
    [
        ("*", "https://a.example", True),
        ("a.example", "https://a.example", True),
        ("a.example", "https://A.Example.:443/", True),
        ("a.example", "https://b.a.example", True),
        ("a.example", "https://aa.example", False),
        (".a.example", "https://b.a.example", True),
        ("*.a.example", "https://b.a.example", True),
        ("b.example, a.example", "https://a.example", True),
        ("a.example:8443", "https://a.example:8443", True),
        ("a.example:8443", "https://a.example", False),
        ("a.example:443", "https://a.example", True),
        ("10.0.0.0/8", "https://10.1.2.3", True),
        ("10.0.0.0/8", "https://11.1.2.3", False),
        ("10.0.0.0/8", "https://ten.example", False),
        ("192.0.2.7", "https://192.0.2.7:8443", True),
        ("fd00::/8", "https://[fd12::1]", True),
        ("[fd12::1]:443", "https://[fd12::1]", True),
        ("[fd12::1]:80", "https://[fd12::1]", False),
        ("", "https://a.example", False),
    ],
)
def test_no_proxy_names_the_exceptions(exceptions: str, url: str, direct: bool) -> None:
    """Hosts with those below them, addresses and networks, each with a port if it has one."""
    for settings in (NetworkSettings(), NetworkSettings(proxy=ALL)):
        network = Network(settings, environment={"ALL_PROXY": ALL, "NO_PROXY": exceptions})
        assert (network.proxy_for(url) is None) is direct


def test_a_setting_overrides_the_environment() -> None:
    """The setting of a table before that of [network], and that before the environment."""
    environment = {"HTTPS_PROXY": HTTPS, "NO_PROXY": "a.example"}
    other, url = "http://other:9", "https://b.example"
    assert Network(NetworkSettings(proxy="none"), environment=environment).proxy_for(url) is None
    assert Network(NetworkSettings(proxy="none"), environment=environment).proxy_for(url, "environment") == HTTPS
    assert Network(NetworkSettings(proxy=other), environment=environment).proxy_for(url) == other
    network = Network(environment=environment, resolve={"env:P": Secret("http://u:p@other:9")}.__getitem__)
    assert network.proxy_for(url, "none") is None
    assert network.proxy_for("https://a.example", other) == other, "exceptions are not for a model's own proxy"
    for exception in ("https://a.example", "http://localhost:8080"):
        assert network.secret_proxy_for(exception, other, exceptions=True) is None, "they are for web tools"
    assert network.proxy_for(url, "env:P") == "http://u:p@other:9"


@pytest.mark.parametrize("text", ["socks5://u:canary@h:1", "http://u:canary@:1", "http://u:canary@h:port", "ftp://h"])
def test_an_invalid_proxy_is_named_but_not_quoted(text: str) -> None:
    """X22: it may contain a password."""
    with pytest.raises(Misconfigured) as caught:
        Network(environment={"ALL_PROXY": text})
    assert "ALL_PROXY" in caught.value.message and "canary" not in caught.value.message
    with pytest.raises(Misconfigured) as caught:
        Network(resolve=lambda _: Secret(text)).proxy_for("https://a.example", "env:P")
    assert "canary" not in caught.value.message


def test_passwords_of_proxies_are_known_to_the_redactor() -> None:
    """X22: also as they are after decoding."""
    network = Network(environment={"ALL_PROXY": "http://u:can%40ary@h:1"})
    assert {secret.reveal() for secret in network.secrets} == {"can%40ary", "can@ary"}


@needs_openssl
async def test_one_tls_context_is_shared_by_all_with_the_same_authorities(tmp_path: Path) -> None:
    """H22: and the file of authorities is added to the others."""
    authority = await to_thread.run_sync(Authority, tmp_path / "ca")
    network = Network(home=tmp_path)
    usual, own = await network.tls_context(), await network.tls_context("ca/ca.pem")
    assert usual is await network.tls_context() and own is await network.tls_context("ca/ca.pem")
    assert len(own.get_ca_certs()) == len(usual.get_ca_certs()) + 1
    with_global = await Network(NetworkSettings(ca_file=str(authority.certificate))).tls_context()
    assert len(with_global.get_ca_certs()) == len(own.get_ca_certs())


@pytest.mark.parametrize("content", [None, b"", b"nonsense"])
async def test_a_file_without_authorities_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "ca.pem").write_bytes(content)
    with pytest.raises(Misconfigured, match=r"\[models.main\] ca_file: ca.pem cannot be used"):
        Network(home=tmp_path).check("[models.main]", ca_file="ca.pem")
