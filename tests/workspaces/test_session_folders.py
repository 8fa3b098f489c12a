"""Workspace folders: complete removal, measuring, and nothing else touched."""

import os
from pathlib import Path

import pytest

from tidegate.workspaces.session_folders import Folders, disk_usage_bytes, remove

SESSION = "s_" + "a" * 32


def test_a_folder_of_any_depth_is_removed(tmp_path: Path) -> None:
    """L19: deeper than a path or a stack can be."""
    folder = tmp_path / SESSION
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deeper-than-that", dir_fd=place)
        below = os.open("deeper-than-that", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=place))
    os.close(place)
    assert disk_usage_bytes([folder], 1 << 40) == (1 << 40) + 1
    remove(folder)
    assert list(tmp_path.iterdir()) == []


def test_removing_a_folder_follows_no_links(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_text("precious")
    folder = tmp_path / SESSION
    (folder / "sub").mkdir(parents=True)
    (folder / "link").symlink_to(outside)
    (folder / "sub" / "link").symlink_to(outside / "file")
    (folder / "broken").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    remove(folder)
    assert [entry.name for entry in tmp_path.iterdir()] == ["outside"]
    assert (outside / "file").read_text() == "precious" and outside.stat().st_mode & 0o777 == 0o755
    (tmp_path / "s_link").symlink_to(outside)
    remove(tmp_path / "s_link")
    assert (outside / "file").exists()


def test_a_folder_with_very_many_files_is_removed(tmp_path: Path) -> None:
    folder = tmp_path / SESSION
    folder.mkdir()
    for number in range(3000):
        (folder / f"{number}").touch()
    remove(folder)
    assert not folder.exists()
    remove(folder)


def test_the_size_of_a_folder_is_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_bytes(b"x" * 100_000)
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    (tmp_path / "link").symlink_to("/usr")
    assert 100_000 <= disk_usage_bytes([tmp_path], 1 << 40) < 200_000
    assert disk_usage_bytes([tmp_path / "none"], 100) == 0
    assert disk_usage_bytes([tmp_path], 10) > 10


@pytest.mark.parametrize("name", ["main", "s_1", "s_" + "A" * 32, "x" + SESSION, SESSION + "x", "..", "s_" + "a" * 33])
def test_only_folders_named_after_sessions_are_listed(tmp_path: Path, name: str) -> None:
    folders = Folders(tmp_path)
    if name != "..":
        (folders.root / name).mkdir(parents=True)
    assert folders.sessions() == {}
