"""Who can reach the gateway."""

import socket

import pytest

from tidegate.config import ServerSettings
from tidegate.errors import Misconfigured
from tidegate.gateway import listen_address


def test_loopback_is_bound_and_needs_no_warning() -> None:
    """X01, X03: the default address is this machine's alone."""
    with listen_address.bind(ServerSettings(), 0) as bound:
        assert listen_address.warning(ServerSettings(), bound) is None
        assert listen_address.address_of(ServerSettings(), bound) == f"http://127.0.0.1:{bound.getsockname()[1]}"
        with socket.create_connection(bound.getsockname(), timeout=10):
            pass


def test_beyond_loopback_without_tls_is_refused() -> None:
    """X01, X03: the bound address is checked, not the configured one."""
    with pytest.raises(Misconfigured) as refused:
        listen_address.bind(ServerSettings(host="0.0.0.0"), 0)
    assert "insecure = true" in refused.value.message


def test_listening_beyond_loopback_by_explicit_setting_gives_a_clear_warning() -> None:
    """X03: an exposed gateway says so at its start."""
    wish = ServerSettings(host="0.0.0.0", insecure=True)
    with listen_address.bind(wish, 0) as bound:
        warning = listen_address.warning(wish, bound)
    assert warning is not None
    assert warning.startswith("EXPOSED")


def test_a_port_that_is_taken_is_one_sentence_that_names_it() -> None:
    """F3: the sentence says what to do."""
    with listen_address.bind(ServerSettings(), 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(Misconfigured, match=f"Port {port} .* --port"):
            listen_address.bind(ServerSettings(), port)


def test_a_host_without_an_address_is_one_sentence() -> None:
    """F3: as above, for names that do not resolve."""
    with pytest.raises(Misconfigured, match="cannot be resolved"):
        listen_address.bind(ServerSettings(host="no.such.host.invalid", insecure=True), 0)
