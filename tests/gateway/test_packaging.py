"""What `pip install` gives: a wheel with everything in it, and lock files that fit what it asks for."""

import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterable
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.gateway.process import WAIT, environment, gateway
from tidegate import __version__

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCE = ROOT / "src"
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^ ;\\]+)[^\\]*\\\n((?: +--hash=.*\n?)+)")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this tree, unpacked."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=WAIT, env=environment())
    (file,) = folder.glob("*.whl")
    unpacked = folder / "unpacked"
    with zipfile.ZipFile(file) as packed:
        packed.extractall(unpacked)
        return unpacked


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def _files(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_every_file_of_the_program(wheel: Path) -> None:
    """X21: code, its types, the page with what it uses of others, their licences and ours; and nothing else."""
    given = _files(wheel)
    assert {"tidegate/py.typed", "tidegate/web/static/index.html", "tidegate/web/static/vendor/preact.js"} <= given
    assert any(name.startswith("tidegate/web/static/vendor/LICENSE") for name in given)
    information = f"tidegate-{__version__}.dist-info"
    assert (wheel / information / "licenses" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    licences = {path.name for path in (wheel / information / "licenses").rglob("*")}
    assert {
        "THIRD_PARTY_NOTICES.md",
        "LICENSE.markdown-it",
        "LICENSE.purify",
        "LICENSE.temml",
        "LICENSE.highlight",
    } <= licences
    assert {name for name in given if not name.startswith(information)} == _files(SOURCE)


def test_the_wheel_installs_the_command(wheel: Path) -> None:
    """X21: `tidegate`, which is what the readme tells people to call."""
    entries = ConfigParser()
    entries.read(wheel / f"tidegate-{__version__}.dist-info" / "entry_points.txt")
    assert dict(entries["console_scripts"]) == {"tidegate": "tidegate.cli:main"}
    program = "import tidegate; from tidegate.cli import main; print(tidegate.__file__); main(['version'])"
    run = subprocess.run(
        [sys.executable, "-c", program], cwd=wheel, env=environment(PYTHONPATH=str(wheel)),
        capture_output=True, text=True, timeout=WAIT, check=True,
    )  # fmt: skip
    where, version = run.stdout.splitlines()
    assert Path(where).is_relative_to(wheel)
    assert __version__ in version


def test_the_installed_wheel_serves_the_page_and_answers(wheel: Path, tmp_path: Path) -> None:
    """X21, H23: without the tree that it was built from."""
    with gateway(tmp_path / "home", PYTHONPATH=str(wheel)) as running:
        for name in _files(wheel / "tidegate" / "web" / "static"):
            if name.endswith((".js", ".css", ".html", ".svg")):
                with urlopen(f"{running.address}/static/{name}", timeout=WAIT) as answer:
                    assert answer.read() == (wheel / "tidegate" / "web" / "static" / name).read_bytes(), name
        assert running.say("say hello") == "hello"


def _pins(name: str) -> dict[str, str]:
    """The versions of a lock file, by name; each has its hashes."""
    text = (ROOT / name).read_text()
    found = {}
    for pin in PIN.finditer(text):
        for line in pin[3].splitlines():
            assert HASH.fullmatch(line), line
        found[canonicalize_name(pin[1])] = pin[2]
    assert PIN.sub("", text).strip() == "", "only pins with hashes"
    return found


def _fit(wanted: Iterable[str], pins: dict[str, str]) -> list[str]:
    """Those that the pins do not satisfy."""
    requirements = [Requirement(text) for text in wanted]
    return [str(one) for one in requirements if not one.specifier.contains(pins.get(canonicalize_name(one.name), "0"))]


def test_every_dependency_is_locked_by_hash_in_a_version_that_fits(project: dict[str, Any]) -> None:
    """X21: the program's own, those of its extras and of its tests, and what builds it."""
    assert _fit(project["project"]["dependencies"], _pins("requirements.lock")) == []
    extras = [one for extra in project["project"]["optional-dependencies"].values() for one in extra]
    assert _fit([*extras, *project["dependency-groups"]["dev"]], _pins("requirements-dev.lock")) == []
    assert _fit(project["build-system"]["requires"], _pins("requirements-build.lock")) == []


def test_the_lock_files_agree_with_each_other() -> None:
    """X21: they are installed one over the other, so that a package in two of them has one version."""
    locks = [_pins(name) for name in ("requirements.lock", "requirements-dev.lock", "requirements-build.lock")]
    versions: dict[str, set[str]] = {}
    for lock in locks:
        for name, version in lock.items():
            versions.setdefault(name, set()).add(version)
    assert {name: found for name, found in versions.items() if len(found) > 1} == {}
