"""The page's libraries are the files of named packages and versions, unchanged since they were fetched."""

import hashlib
import re
import tomllib

from tests.page.test_accessibility import STYLE

VENDOR = STYLE.parent / "vendor"


def test_vendored_files_have_their_recorded_checksums() -> None:
    """Each file of the folder is listed, and each listed file is there."""
    listed = dict(reversed(line.split("  ")) for line in (VENDOR / "SHA256SUMS").read_text().splitlines())
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "SHA256SUMS"
    }
    assert found == listed


def test_each_package_has_a_version_a_licence_and_a_notice() -> None:
    """And its files are those that the folder has."""
    packages = tomllib.loads((VENDOR / "packages.toml").read_text())["package"]
    notices = (VENDOR / "THIRD_PARTY_NOTICES.md").read_text()
    files = {"packages.toml", "SHA256SUMS", "THIRD_PARTY_NOTICES.md"}
    for package in packages:
        assert re.fullmatch(r"\d+\.\d+\.\d+", package["version"])
        assert f"| {package['name']} | {package['version']} | {package['licence']} |" in notices
        files |= set(package["files"].values())
    assert {path.name for path in VENDOR.iterdir()} == files
    assert {name.partition(".")[2] for name in files if name.startswith("LICENSE.")} >= {
        "markdown-it",
        "purify",
        "temml",
        "highlight",
    }
