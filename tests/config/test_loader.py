"""Valid and invalid `tidegate.toml` files."""

import os
from pathlib import Path

import msgspec
import pytest

from tidegate.config import Config, home_folder, is_loopback, load, read
from tidegate.errors import Misconfigured

HOME = Path("/srv/gate")
VECTORS = "\n[models.v]\napi = 'openai-embeddings'\nbase_url = 'http://127.0.0.1/v1'\nmodel = 'm'\n"
MODEL = '[models.main]\napi = "openai-chat"\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\n'


def complaints(text: str) -> list[str]:
    with pytest.raises(Misconfigured) as caught:
        read(text, HOME)
    return caught.value.message.split("\n")


def complaint(text: str) -> str:
    (line,) = complaints(text)
    return line


def test_without_a_file_every_setting_has_its_default_and_the_demo_model_is_used(tmp_path: Path) -> None:
    config = load(tmp_path)
    assert config.demo
    assert config.models["main"].api == "demo"
    assert config.agents["main"].tools == ("ask", "clock", "context", "files", "memory", "skills", "terminal")
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8420)
    assert config.home == tmp_path


def test_the_shape_of_the_first_example_is_read() -> None:
    config = read(
        """
        [server]
        host = "127.0.0.1"
        port = 8421
        [models.main]
        api = "openai-chat"
        base_url = "http://127.0.0.1:18080/v1/"
        model = "some-model"
        key = "env:OPENAI_API_KEY"
        headers = { "X-Title" = "tide", "X-Api-Key" = "file:key" }
        [agents.main]
        model = "main"
        prompt = "You are …"
        tools = ["clock", "files", "clock"]
        [limits]
        residents = 7
        idle_ttl = "12h"
        resident_bytes = "32 MiB"
        memory_bytes = "256 MiB"
        turn_seconds = 90
        [expiry]
        named_idle = "30d"
        retention = "never"
        """,
        HOME,
    )
    assert not config.demo
    model = config.models["main"]
    assert (model.base_url, model.key) == ("http://127.0.0.1:18080/v1", "env:OPENAI_API_KEY")
    assert dict(model.headers) == {"X-Title": "tide", "X-Api-Key": "file:key"}
    assert config.agents["main"].tools == ("clock", "files")
    assert (config.limits.residents, config.limits.idle_ttl) == (7, 43200.0)
    assert (config.limits.resident_bytes, config.limits.turn_seconds) == (32 * 1024 * 1024, 90.0)
    assert config.limits.memory_bytes == 256 * 1024 * 1024
    assert read('[limits]\nmemory_bytes = "auto"', HOME).limits == read("", HOME).limits
    assert (config.expiry.named_idle, config.expiry.retention) == (30 * 86400.0, None)


def test_a_configuration_cannot_be_changed() -> None:
    """L05: the configuration is immutable at every depth."""
    config = read(MODEL + 'headers = { "X-A" = "b" }', HOME)
    with pytest.raises(AttributeError):
        config.limits.residents = 1  # type: ignore[misc]
    with pytest.raises(TypeError):
        config.models["other"] = config.models["main"]  # type: ignore[index]
    with pytest.raises(TypeError):
        config.models["main"].headers["X-A"] = "c"  # type: ignore[index]
    with pytest.raises(TypeError):
        Config(home=HOME).models["x"] = config.models["main"]  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[limits]\nresidnts = 5", "tidegate.toml: [limits] has no key 'residnts'; did you mean 'residents'?"),
        (
            '[limits]\nresidents = "many"',
            'tidegate.toml: limits.residents must be a whole number of at least 1, not "many"',
        ),
        ("[limits]\nresidents = 0", "tidegate.toml: limits.residents must be a whole number of at least 1, not 0"),
        (
            "[limits]\nresidents = true",
            "tidegate.toml: limits.residents must be a whole number of at least 1, not true",
        ),
        ("[limits]\nresidents = 1.5", "tidegate.toml: limits.residents must be a whole number of at least 1, not 1.5"),
        ("[server]\nport = 65536", "tidegate.toml: server.port must be at most 65535, not 65536"),
        ("[limt]\n", "tidegate.toml: there is no table or key 'limt'; did you mean 'limits'?"),
        ("limits = 3", "tidegate.toml: limits must be a table, [limits], not 3"),
        ("[[limits]]", "tidegate.toml: limits must be a table, [limits], not a list"),
        (
            '[store]\ndurability = "powr"',
            'tidegate.toml: store.durability must be one of "process", "power", not "powr"; did you mean \'power\'?',
        ),
        (
            '[limits]\nidle_ttl = "soon"',
            'tidegate.toml: limits.idle_ttl must be a duration in seconds or like "12h" of at least 1, not "soon"',
        ),
        (
            "[limits]\nidle_ttl = nan",
            'tidegate.toml: limits.idle_ttl must be a duration in seconds or like "12h" of at least 1, not nan',
        ),
        ("[expiry]\nretention = 1e30", "tidegate.toml: expiry.retention must be at most a hundred years, not 1e+30"),
        (
            "[expiry]\nephemeral_idle = 'never'",
            'tidegate.toml: expiry.ephemeral_idle must be a duration in seconds or like "12h" of at least 1m, '
            'not "never"',
        ),
        (
            '[limits]\nbody_bytes = "16 MB"',
            'tidegate.toml: limits.body_bytes must be a size in bytes or like "64 MiB", at least 1 KiB, not "16 MB"',
        ),
        (
            '[limits]\nmemory_bytes = "much"',
            'tidegate.toml: limits.memory_bytes must be a size in bytes or like "64 MiB", at least 32 MiB, or "auto", '
            'not "much"',
        ),
        ("[limits]\nbody_bytes = '2 GiB'", 'tidegate.toml: limits.body_bytes must be at most 1 GiB, not "2 GiB"'),
        ("[server]\ninsecure = 1", "tidegate.toml: server.insecure must be true or false, not 1"),
        ("[server]\nhost = ''", "tidegate.toml: server.host must not be empty"),
        ("[server]\nhost = 'a b'", 'tidegate.toml: server.host must be an IP address or a host name, not "a b"'),
        (
            "[server]\ntls_cert = 'c.pem'",
            "tidegate.toml: [server] also requires the key 'tls_key'; set both tls_cert and tls_key, or neither",
        ),
        (
            "[server]\norigins = ['*']",
            'tidegate.toml: server.origins must be a list of origins like "https://chat.example.org", without a path '
            "or '*', but contains \"*\"",
        ),
        (
            "[models.main]",
            "tidegate.toml: [models.main] requires the key 'api', one of "
            '"demo", "openai-chat", "openai-responses", "anthropic", "openai-embeddings", "openai-transcription", '
            '"openai-speech"',
        ),
        (
            '[models.main]\napi = "openai-chat"\nmodel = "m"',
            "tidegate.toml: [models.main] requires the key 'base_url' with api = \"openai-chat\"",
        ),
        (
            '[models]\napi = "demo"',
            "tidegate.toml: models.api must be in a table with a name, such as [models.main]",
        ),
        ("[models]\nx = 3", "tidegate.toml: models.x must be a table, [models.x], not 3"),
        ("agents = []", "tidegate.toml: agents must be tables, [agents.NAME], not a list"),
        (
            "[agents.'../x']\nmodel = 'main'",
            "tidegate.toml: agents.\"../x\": a name may have up to 64 letters, digits, '.', '_' and '-', and must "
            "start with a letter or digit",
        ),
        (
            "[agents.a]\ntools = ['clock', 3]",
            "tidegate.toml: agents.a.tools must be a list of names (letters, digits, '.', '_', '-'), but contains 3",
        ),
        (
            MODEL + "[agents.a]\nmodel = 'mian'",
            "tidegate.toml: agents.a.model does not exist: there is no [models.mian]; did you mean 'main'?",
        ),
        (
            MODEL + "key = 'env:A'\nkeys = ['env:B']",
            "tidegate.toml: [models.main] has both 'key' and 'keys'; remove one of them",
        ),
        (
            MODEL + "keys = []",
            'tidegate.toml: models.main.keys must be a list of references, "env:NAME" or "file:PATH", with 1 to '
            "100 entries",
        ),
        (MODEL + "keys = ['env:A', 'env:A']", "tidegate.toml: models.main.keys must contain each reference only once"),
        (
            MODEL + "keys = ['env:A', 'sk-0123456789abcdef']",
            'tidegate.toml: models.main.keys must be a list of references, "env:NAME" or "file:PATH"; the secret '
            "itself must not be in this file",
        ),
        (
            MODEL + "price_input = 1",
            "tidegate.toml: [models.main] has 'price_input' and therefore also requires the key 'price_output'",
        ),
        (
            MODEL + "price_output = 1",
            "tidegate.toml: [models.main] has 'price_output' and therefore also requires the key 'price_input'",
        ),
        (
            MODEL + "price_input = -1\nprice_output = 1",
            "tidegate.toml: models.main.price_input must be a price in dollars, a number of at least 0, not -1",
        ),
        (
            MODEL + "price_input = true\nprice_output = 1",
            "tidegate.toml: models.main.price_input must be a price in dollars, a number of at least 0, not true",
        ),
        (
            MODEL + "price_input = nan\nprice_output = 1",
            "tidegate.toml: models.main.price_input must be a price in dollars, a number of at least 0, not nan",
        ),
        (
            MODEL + "price_input = '3 dollars'\nprice_output = 1",
            "tidegate.toml: models.main.price_input must be a price in dollars, a number of at least 0, "
            'not "3 dollars"',
        ),
        (
            MODEL + "price_input = inf\nprice_output = 1",
            "tidegate.toml: models.main.price_input must be at most 1000000, not inf",
        ),
        (
            MODEL + "context_window = 4096\nmax_output = 5000",
            "tidegate.toml: [models.main] has a 'max_output' larger than its 'context_window', 4096; lower it",
        ),
        (
            MODEL + "context_window = 128.5",
            "tidegate.toml: models.main.context_window must be a whole number of at least 128 and at most 1073741824, "
            "not 128.5",
        ),
        (
            MODEL + "cache_ttl = '1h'",
            "tidegate.toml: [models.main] has the key 'cache_ttl', which is only valid for api = \"anthropic\", not "
            '"openai-chat"; remove it',
        ),
        (
            MODEL + "thinking = 'hard'",
            'tidegate.toml: models.main.thinking must be one of "none", "effort", "adaptive", "budget", not "hard"',
        ),
        (
            MODEL + "efforts = ['low', 'hard']",
            'tidegate.toml: models.main.efforts must be a list of some of "none", "minimal", "low", "medium", "high", '
            '"xhigh", "max", but contains "hard"',
        ),
        (
            MODEL + "efforts = []",
            'tidegate.toml: models.main.efforts must be a list of some of "none", "minimal", "low", "medium", "high", '
            '"xhigh", "max", not an empty list',
        ),
        (
            MODEL + "[agents.a]\nreasoning = 'hihg'",
            'tidegate.toml: agents.a.reasoning must be one of "off", "minimal", "low", "medium", "high", "max", not '
            "\"hihg\"; did you mean 'high'?",
        ),
        (
            MODEL + "[agents.a]\nfallback = ['main']",
            "tidegate.toml: [agents.a] fallback contains 'main', which is already its 'model'; remove it from the list",
        ),
        (
            MODEL + "[agents.a]\nfallback = ['mian']",
            "tidegate.toml: [agents.a] fallback contains 'mian', but there is no [models.mian]; did you mean 'main'?",
        ),
        (
            MODEL + "[models.b]\napi = 'demo'\n[agents.a]\nfallback = ['b', 'b']",
            'tidegate.toml: agents.a.fallback must contain each name at most once, but contains "b" several times',
        ),
        (
            "[models.big]\napi = 'demo'\n[agents.a]\nprompt = 'p'",
            "tidegate.toml: agents.a.model is not set, and its default does not exist: there is no [models.main]; "
            "valid: big",
        ),
        (
            VECTORS + "[agents.a]\nmodel = 'v'",
            "tidegate.toml: agents.a.model is 'v', which is a model for embeddings (api = "
            '"openai-embeddings"); name a chat model instead',
        ),
        (
            VECTORS,
            "tidegate.toml: agents.main.model is 'v', which is a model for embeddings (api = \"openai-embeddings\"); "
            "name a chat model instead",
        ),
        (
            MODEL + VECTORS + "[agents.a]\nfallback = ['v']",
            "tidegate.toml: [agents.a] fallback contains 'v', which is a model for embeddings (api = "
            '"openai-embeddings"); name a chat model instead',
        ),
        (
            MODEL + VECTORS + "[memory]\nmodel = 'v'",
            "tidegate.toml: [memory] model is 'v', which is a model for embeddings (api = "
            '"openai-embeddings"); name a chat model instead',
        ),
        (
            MODEL + "[context]\nembeddings = 'main'",
            "tidegate.toml: [context] embeddings is 'main', which is a chat model (api = "
            '"openai-chat"); name a model for embeddings instead',
        ),
        (
            MODEL + VECTORS + "[context]\nembeddings = 'v'\nindex = 'mine'",
            "tidegate.toml: [context] has both 'index' and 'embeddings', but searches use only one; remove one of them",
        ),
        (
            MODEL + VECTORS.replace("'m'", "'m'\nvision = true"),
            "tidegate.toml: [models.v] has the key 'vision', which is only valid for api = \"openai-chat\" or "
            '"openai-responses" or "anthropic", not "openai-embeddings"; remove it',
        ),
        (
            MODEL + "dimensions = 256",
            "tidegate.toml: [models.main] has the key 'dimensions', which is only valid for api = "
            '"openai-embeddings", not "openai-chat"; remove it',
        ),
        (
            MODEL + VECTORS.replace("embeddings", "speech"),
            "tidegate.toml: [models.v] requires the key 'voice' with api = \"openai-speech\"",
        ),
        (
            MODEL + "context_window = 512",
            "tidegate.toml: [models.main] has a 'context_window' below 1024, which is too small for a chat model",
        ),
        (
            "[agents.a]\nmodel = 1979-05-27",
            "tidegate.toml: agents.a.model must be one line of text, not a date or time",
        ),
    ],
)
def test_an_error_is_one_sentence_with_the_file_the_key_and_the_valid_values(text: str, said: str) -> None:
    assert complaint(text) == said


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[server]\nport 8420", "line 2, column 6: "),
        ("a = [1,\n", "line 2, column 1: "),
        ('[server]\nhost = "127', "line 2, column 12: "),
        ("[server]\nport = 1\nport = 2", "line 3, column 9: "),
    ],
)
def test_a_syntax_error_has_its_line_and_column(text: str, place: str) -> None:
    assert complaint(text).startswith("tidegate.toml: " + place)


def test_up_to_ten_errors_are_reported_together() -> None:
    lines = complaints("[limits]\nresidents = 0\nturns = 0\n[log]\nlevel = 'loud'")
    assert [line.split()[1] for line in lines] == ["limits.residents", "limits.turns", "log.level"]
    many = complaints("[limits]\n" + "".join(f"wrong{n} = 1\n" for n in range(25)))
    assert len(many) == 10
    assert many[-1] == "tidegate.toml: and 16 more errors"


def test_an_invalid_model_causes_no_errors_for_its_agents() -> None:
    assert complaint("[models.main]\napi = 'demo'\nretries = -1").startswith("tidegate.toml: models.main.retries")


@pytest.mark.parametrize("models", ["3", "[]", "[1]", "'x'", "{}", "{ main = 3 }"])
@pytest.mark.parametrize("agents", ["3", "[]", "[1]", "'x'", "{}", "{ main = 3 }"])
def test_groups_of_the_wrong_type_are_each_reported_once(models: str, agents: str) -> None:
    if models == agents == "{}":
        return
    lines = complaints(f"models = {models}\nagents = {agents}")
    assert len(lines) == (models != "{}") + (agents != "{}")


def test_the_settings_of_models_and_fallbacks_are_read() -> None:
    config = read(
        """
        [models.main]
        api = "anthropic"
        base_url = "https://api.example.org/v1"
        model = "claude"
        keys = ["env:ONE", "file:keys/two"]
        context_window = 200_000
        max_output = 64_000
        vision = true
        audio = false
        thinking = "adaptive"
        efforts = ["max", "low", "low", "high"]
        price_input = 3
        price_output = 15.5
        price_cached = 0.3
        price_written = 3.75
        cache_ttl = "1h"
        [models.spare]
        api = "openai-responses"
        base_url = "https://api.example.com/v1"
        model = "gpt"
        key = "env:THREE"
        [models.own]
        api = "demo"
        [agents.main]
        fallback = ["own", "spare"]
        reasoning = "max"
        """,
        HOME,
    )
    main, spare, own = config.models.values()
    assert main.references == ("env:ONE", "file:keys/two")
    assert (spare.references, own.references) == (("env:THREE",), ())
    assert (main.context_window, main.max_output, main.vision, main.audio) == (200_000, 64_000, True, False)
    assert main.efforts == ("low", "high", "max"), "in rising order, whatever the file's"
    assert (main.price_input, main.price_output, main.price_cached, main.price_written) == (3.0, 15.5, 0.3, 3.75)
    assert isinstance(main.price_input, float)
    assert (main.thinking, main.cache_ttl, spare.cache_ttl) == ("adaptive", "1h", None)
    assert (spare.context_window, spare.vision, spare.efforts, spare.price_input) == (None, None, None, None)
    assert (config.agents["main"].fallback, config.agents["main"].reasoning) == (("own", "spare"), "max")
    bare = read(MODEL, HOME)
    assert (bare.agents["main"].fallback, bare.agents["main"].reasoning) == ((), None)


def test_an_invalid_fallback_model_is_reported_once() -> None:
    said = complaint(MODEL + "[models.b]\napi = 'demo'\nretries = -1\n[agents.a]\nfallback = ['b']")
    assert said.startswith("tidegate.toml: models.b.retries")


def test_the_default_agent_uses_the_first_model_if_none_is_named_main() -> None:
    config = read("[models.big]\napi = 'demo'", HOME)
    assert config.agents["main"].model == "big"
    assert not config.demo


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "LOCALHOST.example.org", "::ffff:10.0.0.1"]
)
def test_listening_beyond_loopback_requires_tls_or_an_explicit_setting(host: str) -> None:
    """X01, X03: nothing listens beyond the machine by accident."""
    assert not is_loopback(host)
    said = complaint(f"[server]\nhost = {msgspec.json.encode(host).decode()}")
    assert said.startswith(
        f'tidegate.toml: server.host "{host}" can be reached from other machines; set server.tls_cert'
    )
    assert read(f"[server]\nhost = '{host}'\ninsecure = true", HOME).server.insecure
    assert read(f"[server]\nhost = '{host}'\ntls_cert = 'c'\ntls_key = 'k'", HOME).server.tls_cert == "c"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LocalHost"])
def test_loopback_needs_neither(host: str) -> None:
    """X01: the default is safe and needs no certificate."""
    assert is_loopback(host)
    assert read(f"[server]\nhost = '{host}'", HOME).server.host == host


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").mkdir()
    with pytest.raises(Misconfigured, match="is not a file"):
        load(tmp_path)
    (tmp_path / "tidegate.toml").rmdir()
    (tmp_path / "tidegate.toml").write_bytes(b"[server]\nhost = '\xff'")
    with pytest.raises(Misconfigured, match="line 2, column 9: the file is not valid UTF-8"):
        load(tmp_path)
    (tmp_path / "tidegate.toml").write_bytes(b"#" * (5 * 1024 * 1024))
    with pytest.raises(Misconfigured, match="is larger than"):
        load(tmp_path)
    (tmp_path / "tidegate.toml").unlink()
    os.mkfifo(tmp_path / "tidegate.toml")
    with pytest.raises(Misconfigured, match="is not a file"):
        load(tmp_path)


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_bytes(b"\xef\xbb\xbf[server]\nport = 1\n")
    assert load(tmp_path).server.port == 1


def test_the_home_folder_is_the_option_then_the_variable_then_the_default() -> None:
    env = {"TIDEGATE_HOME": "/b"}
    assert home_folder("/a", env) == Path("/a")
    assert home_folder(None, env) == Path("/b")
    assert home_folder(None, {}) == Path("~/.tidegate").expanduser()
    assert home_folder("x", {}).is_absolute()
    with pytest.raises(Misconfigured):
        home_folder("~nobody-of-that-name/x", {})


def test_paths_start_at_the_home_folder() -> None:
    config = read("[agents.main]\nworkspace = 'notes'\n[agents.other]\nworkspace = '/abs'\n[agents.third]\n", HOME)
    assert config.project("main") == HOME / "notes"
    assert config.project("other") == Path("/abs")
    assert config.project("third") is None
    with pytest.raises(Misconfigured):
        config.path("~nobody-of-that-name/x")


@pytest.mark.parametrize("secret", ['key = "env:A"', 'keys = ["env:A", "env:B"]', 'headers = { x-key = "file:b" }'])
@pytest.mark.parametrize("host", ["10.0.0.1", "example.org", "[2001:db8::1]:8080", "localhost.example.org"])
def test_no_key_is_sent_over_plain_http_to_another_machine(secret: str, host: str) -> None:
    """X15: others could read it on the way. Without a key, over https or on this machine, it is allowed."""
    model = '[models.main]\napi = "openai-chat"\nmodel = "m"\nbase_url = "{}"\n'
    with pytest.raises(Misconfigured) as told:
        read(model.format(f"http://{host}/v1") + secret, HOME)
    assert told.value.message == (
        "tidegate.toml: [models.main] base_url would send its key to another machine over plain http, where others "
        "can read it; use https, or a tunnel to 127.0.0.1"
    )
    for fine in (model.format(f"http://{host}/v1"), model.format(f"https://{host}/v1") + secret):
        assert read(fine, HOME).models["main"] is not None
    for here in ("127.0.0.1:8080", "127.1.2.3", "localhost:1", "[::1]"):
        assert read(model.format(f"http://{here}/v1") + secret, HOME).models["main"] is not None


def test_no_key_of_a_search_engine_is_sent_over_plain_http_to_another_machine() -> None:
    """X15: a search engine without a key may use plain http."""
    web = '[web]\nsearch = "searxng"\nsearch_url = "http://{}"\n'
    with pytest.raises(Misconfigured, match="search_url would send 'search_key' to another machine over plain http"):
        read(web.format("10.0.0.1") + 'search_key = "env:A"', HOME)
    assert read(web.format("10.0.0.1"), HOME).web.search_key is None
    assert read(web.format("127.0.0.1:8888") + 'search_key = "env:A"', HOME).web.search_key == "env:A"
