"""Real turns: sounds that tools read or create reach the model as sounds, across unload and restart."""

import base64
import io
import itertools
import re
import shutil
import wave
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.scripted_model import ScriptedModel
from tests.core import ANNA, Core, core, settings
from tests.spool.sounds import mp3, wav
from tidegate.agent import Conversation
from tidegate.tools import Result, ToolContext, Toolset, tool
from tidegate.values import Media

pytestmark = pytest.mark.anyio
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results.md"
LARGE, SMALL, SONG = wav(10), wav(0.5), mp3(40)


@tool(effect="read", timeout=30, parallel=True)
async def hum(ctx: ToolContext, *, large: bool = False) -> Result:
    """Hums."""
    media = await ctx.spool.media("hum", LARGE if large else SMALL)
    return Result(text=f"hummed for {media.seconds} s", media=(media,))


@tool(effect="read", timeout=30)
async def whistle(ctx: ToolContext) -> Result:
    """Whistles without asking."""
    return Result(text="whistled", media=(Media(media_type="audio/wav", data=SMALL, seconds=0.5),))


TOOLS = {"test": Toolset((hum, whistle))}


def sent_sounds(gateway: Core) -> list[bytes]:
    """The sounds in the last request."""
    contents = [message["content"] for message in gateway.requests()[-1]["messages"]]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    return [base64.b64decode(part["input_audio"]["data"]) for part in parts if part["type"] == "input_audio"]


def told(gateway: Core) -> str:
    return msgspec.json.encode(gateway.requests()[-1]).decode()


def check_growth(model: ScriptedModel) -> None:
    assert model.stats()["refused"] == 0
    for earlier, later in itertools.pairwise([request.body for request in model.recorded]):
        assert later.startswith(earlier.removesuffix(b"]}"))


def running(home: Path, model: ScriptedModel, project: Path, **options: Any) -> Any:
    extra = f'workspace = "{project}"\n'
    return core(home, extra, model=model, toolsets=TOOLS, tools='"test", "files", "output"', **options)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, data in {"speech.txt": LARGE, "song": SONG, "note.wav": SMALL, "song.ogg": b"OggS\0" + bytes(90)}.items():
        (folder / name).write_bytes(data)
    return folder


async def test_a_model_receives_sounds_and_its_requests_only_grow_over_unload_and_restart(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """D3, B4, S32: byte for byte, spooled and inline, from files and from tools, live and from the store."""
    async with running(home, model, project) as gateway:
        first = await gateway.say('[together read_file {"path":"speech.txt"} read_file {"path":"song"} whistle {}] one')
        assert first.state == "answered"
        assert sent_sounds(gateway) == [LARGE, SONG, SMALL]
        assert "audio/wav, 10.0 s" in told(gateway) and "audio/mpeg, 1.0 s" in told(gateway)
        assert len(list((gateway.components.spool.root / first.session).iterdir())) == 1
        shutil.rmtree(project)
        await gateway.say("two")
        assert gateway.components.presence.unload(first.session, reason="test")
        await gateway.say('[tool hum {"large":true}] three')
    async with running(home, model, project) as gateway:
        await gateway.say("four")
        assert sent_sounds(gateway) == [LARGE, SONG, SMALL, LARGE]
        check_growth(model)


async def test_the_tool_in_the_documentation_works(home: Path, model: ScriptedModel) -> None:
    """D3: a user's own tool, from its file to the model."""
    (code,) = re.findall(r"^```python\n(.*?)^```", RESULTS.read_text(), re.MULTILINE | re.DOTALL)
    (home / "plugins").mkdir(parents=True)
    (home / "plugins" / "beeps.py").write_text(code)
    async with core(home, model=model, tools='"beeps"') as gateway:
        assert (await gateway.say("[tool beep {}] one")).state == "answered"
        (sound,) = sent_sounds(gateway)
        with wave.open(io.BytesIO(sound)) as file:
            assert file.getnframes() == file.getframerate() == 8000
        assert "beeped for 1.0 s" in told(gateway)
        assert model.stats()["refused"] == 0


async def test_a_model_without_audio_gets_a_description_and_a_later_one_the_sound(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """D3: with a note and not an error; a later model receives the sound."""
    toml = settings(model, f'workspace = "{project}"\n', tools='"files"')
    async with core(home, model=model, toml=toml.replace("audio = true\n", "")) as gateway:
        outcome = await gateway.say('[tool read_file {"path":"speech.txt"}] one')
        assert outcome.state == "answered"
        assert sent_sounds(gateway) == []
        assert "[A sound (audio/wav, 10.0 s) stands here, which this model cannot hear.]" in told(gateway)
    async with core(home, model=model, toml=toml) as gateway:
        await gateway.say("two")
        assert sent_sounds(gateway) == [LARGE]
        assert model.stats()["refused"] == 0


async def test_an_unsupported_sound_is_an_error_and_the_turn_continues(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """D3: the error names the format and what to do."""
    async with running(home, model, project) as gateway:
        outcome = await gateway.say('[tool read_file {"path":"song.ogg"}] one')
        assert outcome.state == "answered"
        (result,) = (message["content"] for message in gateway.requests()[-1]["messages"] if message["role"] == "tool")
        assert "it is Ogg (Vorbis or Opus)" in result and "ffmpeg -i" in result


async def test_a_missing_sound_is_reported_and_cannot_be_fetched(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """D5: a file removed by hand does not end the conversation."""
    async with running(home, model, project) as gateway:
        outcome = await gateway.say('[tool hum {"large":true}] one')
        row = next(row for row in (await gateway.service.transcript(outcome.session, ANNA)).rows if row.message.media)
        media, data = await gateway.service.media(outcome.session, ANNA, row.seq or 0, 0)
        assert (media.media_type, data) == ("audio/wav", LARGE)
        shutil.rmtree(gateway.components.spool.root / outcome.session)
        assert (await gateway.say("two")).state == "answered"
        assert "Sound 1 is no longer available." in told(gateway)


async def test_sounds_that_the_spool_refuses_are_inline_and_omissions_are_reported(
    home: Path, model: ScriptedModel, project: Path
) -> None:
    """D5: to the model and to the user, with the limit; the turn continues, and everything survives a restart."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "spool").write_text("in the way")
    (project / "long.wav").write_bytes(wav(70))
    async with running(home, model, project) as gateway:
        outcome = await gateway.say('[together read_file {"path":"speech.txt"} read_file {"path":"long.wav"}] one')
        assert outcome.state == "answered"
        assert sent_sounds(gateway) == [LARGE]
        assert "stored in its message, since it could not be written" in told(gateway)
        (notice,) = outcome.notices
        assert notice.startswith('The sound "long.wav" cannot be sent: it could not be written') and "2097152" in notice
        assert msgspec.json.encode(notice).decode()[1:-1] in told(gateway)
        record = gateway.components.presence.get(outcome.session)
        assert record is not None and isinstance(record.resident, Conversation)
        assert record.resident.weight > len(LARGE), "what is inline is weighed"
    async with running(home, model, project) as gateway:
        await gateway.say("two")
        assert sent_sounds(gateway) == [LARGE]
        check_growth(model)
