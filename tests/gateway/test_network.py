"""Proxies and certificate authorities in the configuration of a real gateway."""

import json
from pathlib import Path

import anyio
import pytest

from bench.scripted_model import ScriptedModel
from tests.gateway.process import gateway, tidegate
from tests.http_client.proxies import PASSWORD, proxy

pytestmark = pytest.mark.anyio

MODEL = """
[models.main]
api = "openai-chat"
model = "scripted"
base_url = "{url}"
proxy = "env:TIDE_PROXY"
[log]
level = "debug"
"""


async def test_a_gateway_reaches_its_model_through_a_proxy_with_a_password(tmp_path: Path) -> None:
    """X22: the password is in no log, no status and no configuration that is shown."""
    home = tmp_path / "home"
    home.mkdir()
    async with ScriptedModel() as server, proxy(password=True) as between:
        url = server.base_url.replace("127.0.0.1", "model.test")
        (home / "tidegate.toml").write_text(MODEL.format(url=url))

        def turn() -> str:
            with gateway(home, TIDE_PROXY=between.with_password) as running:
                said = running.say("hello")
                status = tidegate("status", "--json", home=home).stdout
                return said + status + running.log.read_text() + json.dumps(running.said)

        shown = await anyio.to_thread.run_sync(turn)
        assert "The tide comes in" in shown
        assert PASSWORD not in shown
        assert await between.carried("model.test:")


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ('[network]\nproxy = "http://u:canary@h:1"', "must not contain a password"),
        ('[network]\nproxy = "socks5://h:1"', "must be"),
        ('[web]\nproxy = "file:keys/proxy"', "address like http://proxy.example.org:3128"),
        ('[network]\nca_file = "nowhere.pem"', "[network] ca_file: nowhere.pem cannot be used"),
        ('[models.main]\napi = "demo"\nca_file = "keys/proxy"', "[models.main] ca_file: keys/proxy cannot be used"),
    ],
)
def test_an_unusable_proxy_or_authority_is_reported_before_the_start(
    tmp_path: Path, setting: str, sentence: str
) -> None:
    """X22: in one sentence that quotes no secret."""
    (tmp_path / "keys").mkdir(mode=0o700)
    (tmp_path / "keys" / "proxy").touch(mode=0o600)
    (tmp_path / "keys" / "proxy").write_text("ftp://u:canary@h")
    (tmp_path / "tidegate.toml").write_text(setting + "\n")
    run = tidegate("config", "check", home=tmp_path)
    assert run.returncode != 0
    assert sentence in run.stdout + run.stderr
    assert "canary" not in run.stdout + run.stderr
