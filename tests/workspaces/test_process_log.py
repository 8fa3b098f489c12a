"""The log of a process: bounded, with offsets that stay valid."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tidegate.workspaces.processes.process_log import ProcessLog

PIECES = st.lists(st.binary(max_size=300), max_size=40)


@given(pieces=PIECES, limit=st.integers(20, 400), since=st.integers(0, 3000), most=st.integers(0, 500))
def test_the_log_keeps_the_end_of_the_output(
    tmp_path_factory: object, pieces: list[bytes], limit: int, since: int, most: int
) -> None:
    """L19, D4: every requested byte is either returned as it was or counted as dropped."""
    folder = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    base = folder / "s" / "pr_1"
    log = ProcessLog(base, limit)
    for piece in pieces:
        log.append(piece)
    whole = b"".join(pieces)
    for reader in (log, ProcessLog(base, limit)):
        found = reader.read(since, most)
        assert found.total == len(whole)
        assert whole[found.start : found.start + len(found.data)] == found.data
        assert found.start >= min(since, len(whole)) and len(found.data) <= most
        if since >= len(whole) - limit // 2 and since < len(whole) and most:
            assert found.start == since and found.data
        last = reader.read(None, most)
        assert whole.endswith(last.data) and len(last.data) <= most
        assert len(last.data) >= min(most, limit // 2, len(whole))
    assert sum(file.stat().st_size for file in base.parent.glob("*")) <= limit + 50
    log.close()
    log.remove()
    assert list(base.parent.glob("*")) == []


def test_a_failing_disk_does_not_stop_the_process(tmp_path: Path) -> None:
    """D5: the process continues, and output that was not kept counts as dropped."""
    blocked = tmp_path / "s"
    blocked.write_text("in the way")
    log = ProcessLog(blocked / "pr_1", 1000)
    log.append(b"lost")
    assert log.read(0, 100) == (b"", 4, 4)
    blocked.unlink()
    log.append(b"kept")
    assert log.read(0, 100) == (b"kept", 4, 8)
    log.close()
