"""A folder tree for file tests, with a secret outside the mounts."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

from tidegate.workspaces import Mount
from tidegate.workspaces.files import atomic_write
from tidegate.workspaces.files.file_search import DEFAULT_BOUNDS, SearchBounds
from tidegate.workspaces.files.local_files import LocalFiles
from tidegate.workspaces.processes.children import Spawner

SECRET = "outside-secret"
INNER = "/workspace"


class FileTree:
    """`work` is the workspace, `shared` a read-only folder, `outside` is neither."""

    def __init__(self, root: Path) -> None:
        self.work = root / "work"
        self.shared = root / "shared"
        self.outside = root / "outside"
        for folder in (self.work, self.shared, self.outside):
            folder.mkdir()
        (self.outside / "secret").write_text(f"{SECRET}\n")

    def files(self, *, bounds: SearchBounds = DEFAULT_BOUNDS) -> LocalFiles:
        mounts = (
            Mount(inner=INNER, folder=self.work),
            Mount(inner="/shared", folder=self.shared, writable=False),
        )
        return LocalFiles(mounts, Spawner(frozenset(os.sched_getaffinity(0))), bounds=bounds)

    def put(self, tree: dict[str, str | bytes]) -> None:
        for path, content in tree.items():
            file = self.work / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())

    @contextmanager
    def flipping(self) -> Iterator[None]:
        """Keep exchanging the folder `flip` with a link out of the workspace."""
        (self.work / "flop").symlink_to(self.outside)
        fd = os.open(self.work, os.O_PATH)
        try:
            with meanwhile(lambda: atomic_write.exchange(fd, "flip", "flop")):
                yield
        finally:
            os.close(fd)


@contextmanager
def meanwhile(act: Callable[[], None]) -> Iterator[None]:
    """Repeat an action in a thread until the block ends."""
    stop = Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            while not stop.is_set():
                act()
        except BaseException as error:
            failed.append(error)

    thread = Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(30)
    assert not failed, failed
