"""The example package: built, installed into an environment of its own, and used by a real gateway."""

import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.gateway.process import WAIT, environment, gateway, tidegate

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "tidegate-tides"
SETTINGS = """
[models.main]
api = "demo"
[agents.main]
tools = ["tides"]
[plugins.tides]
place = "Ghent"
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment with the gateway and the package, installed from its wheel without network."""
    folder = tmp_path_factory.mktemp("example")
    shutil.copytree(EXAMPLE, folder / "source")
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder, cwd=folder / "source")
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", with_pip=False)
    interpreter = folder / "env" / "bin" / "python"
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    # The gateway and its dependencies, as they are installed here.
    outer = "; ".join(f"site.addsitedir({path!r})" for path in site.getsitepackages())
    (packages / "tidegate-environment.pth").write_text(f"import site; {outer}\n")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", interpreter)
    _run(*pip, "install", "--no-index", "--no-deps", "--quiet", wheel)
    return str(interpreter)


def _run(*command: object, cwd: Path | None = None) -> None:
    run = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=4 * WAIT, env=environment()
    )
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("way", ["entry point", "home folder"])
def test_the_example_package_works_in_a_gateway(way: str, python: str, tmp_path: Path) -> None:
    """X21: from an installed package and from the home folder; with a setting, a data folder, a start and a stop."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "tidegate.toml").write_text(SETTINGS)
    interpreter = sys.executable
    if way == "entry point":
        interpreter = python
    else:
        (home / "plugins").mkdir()
        shutil.copy(EXAMPLE / "src" / "tidegate_tides" / "__init__.py", home / "plugins" / "tides.py")
    program = (interpreter, "-m", "tidegate")
    with gateway(home, program=program) as running:
        (status,) = running.call("GET", "/api/status")["plugins"]
        assert (status["name"], status["kind"], status["state"]) == ("tides", "toolset", "running")
        assert ("site-packages" in status["file"]) == (way == "entry point")
        noted = running.say('call note_tide {"day": "Monday", "time": "12:40"}')
        assert "noted: high water at Ghent on Monday at 12:40" in noted
        running.process.terminate()
        assert running.wait() == 0
    with gateway(home, program=program) as running:
        assert "high water at Ghent on Monday: 12:40" in running.say('call tide {"day": "Monday"}')


def test_without_its_setting_the_gateway_says_what_to_do(tmp_path: Path) -> None:
    """In one sentence, with the line of the plug-in."""
    home = tmp_path / "home"
    (home / "plugins").mkdir(parents=True)
    home.chmod(0o700)
    shutil.copy(EXAMPLE / "src" / "tidegate_tides" / "__init__.py", home / "plugins" / "tides.py")
    (home / "tidegate.toml").write_text(SETTINGS.partition("[plugins")[0])
    run = tidegate("up", "--port", "0", home=home)
    assert run.returncode != 0
    assert "the agent main needs it" in run.stderr and "missing required field `place`" in run.stderr
