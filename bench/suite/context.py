"""One conversation of thousands of turns with a model whose window holds a few dozen of them: plain turns, some with a
tool and its long result, some with a long message.

What a turn costs must not depend on how many came before it. The processor's time and the bytes that are sent are those
of the last fifth of the turns beside a fifth that begins after the first compaction. Between the two the machine may
have become slower for everybody: the load driver does the same for every turn, and by as much as its own turns became
dearer, the earlier ones are counted dearer. The model tells of every request
how long it was and whether the one before came again unchanged with it. A compaction is a request that did not go on
from the one before and is smaller by a tenth at least; any other that did not is a broken prefix.

The disk is measured at the end, with turns of bulk text and with short ones: the gateway is stopped before and after.
"""

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import apsw
import msgspec

from bench.prose import Prose
from bench.readings import fit
from bench.report import Figure
from bench.scripted.temper import Traced
from bench.subjects import Gateway
from bench.suite import Bench
from bench.suite.slope import level
from bench.suite.tools import fill_caches, on_disk
from bench.svg import Series, chart

WINDOW = 32_768
GOAL = 1.2
"""Of the last fifth to the first: what the machine's own scatter adds is in it."""
DISK_GOAL = 1.3
SMALLER = 0.9
"""A request that has less than this part of the tokens of the one before was compacted."""
PARTS = 5
DECILES = 10
READINGS = 200
WORDS, LONG_WORDS, PAGE_WORDS, BULK_WORDS = 40, 400, 900, 1_200
TOOL_EVERY, LONG_EVERY = 10, 25
SHORT_TURNS, BULK_PART = 200, 10
"""Short turns; and of bulk text one for so many turns of the conversation, so that what the index merges now and then
weighs little beside it."""
WITHIN = 1_500.0
LABEL = "context"
SESSION = f"{LABEL}-0"
READ = "[tool read_file " + json.dumps({"path": "page.txt"}) + "]"
KB = 1024.0
MS = 1000.0
_NUMBER = re.compile(r"Message (\d+) of ")


@dataclass(frozen=True)
class Asked:
    """One request, and the turn that it was made in; a summary's is that of the request before it."""

    turn: int
    request: Traced

    @property
    def all_tokens(self) -> int:
        return self.request.tokens + self.request.output


def run(bench: Bench) -> list[Figure]:
    if bench.subject != "gateway":
        return []
    turns = bench.scale.context_turns
    bench.say(f"context: {turns:,} turns of one conversation with a window of {WINDOW:,} tokens")
    folder = bench.place("gateway")
    try:
        with Gateway(folder, bench.model.url, tools=("files",), window=WINDOW) as subject:
            fill_caches(subject)
            bench.temper(by_prompt=True)
            bench.model.call("POST", "/reset")
            page = {"path": "page.txt", "content": Prose(1).text(PAGE_WORDS)}
            subject.ask("[tool write_file " + json.dumps(page) + "]", SESSION)
            driven = say(bench, subject, turns, tool_every=TOOL_EVERY, long_every=LONG_EVERY, first=True)
            asked = placed(msgspec.convert(bench.model.call("GET", "/trace"), list[Traced]))
            stored = summaries_of(subject)
            disk = on_disks(bench, subject)
    finally:
        bench.temper()
        bench.model.call("POST", "/reset")
    return figures(bench, driven["samples"], asked, stored) + disk


def say(bench: Bench, subject: Gateway, turns: int, *, first: bool = False, words: int = WORDS, **plan: Any) -> Any:
    """So many turns of the one conversation."""
    sampled = {"sample": "subject", "sample_every": max(1, turns // READINGS)} if first else {}
    return bench.drive(
        subject,
        LABEL,
        sessions=1,
        turns=turns,
        words=words,
        long_words=LONG_WORDS,
        tool=READ,
        within=WITHIN,
        **sampled,
        **plan,
    )


def placed(trace: Sequence[Traced]) -> list[Asked]:
    found: list[Asked] = []
    turn = 0
    for request in trace:
        if not request.summary and (match := _NUMBER.match(request.text)):
            turn = int(match[1])
        found.append(Asked(turn, request))
    return found


def told_apart(asked: Sequence[Asked]) -> tuple[list[Asked], list[Asked], int]:
    """The requests that a compaction lies before, those whose prefix broke without one, and how many went on."""
    spoken = [one for one in asked if not one.request.summary]
    compacted: list[Asked] = []
    broken: list[Asked] = []
    whole = 0
    for before, one in pairwise(spoken):
        if one.request.came == "whole":
            whole += 1
        elif one.request.came == "changed":
            smaller = one.request.tokens < SMALLER * before.request.tokens
            (compacted if smaller else broken).append(one)
    return compacted, broken, whole


def fifths(turns: int, first: int) -> tuple[range, range]:
    """The turns that are compared: a fifth of all, from the first compaction on, and the last fifth."""
    length = max(1, turns // PARTS)
    begin = min(first, turns - 2 * length)
    return range(begin, begin + length), range(turns - length, turns)


def cpu_of(samples: Sequence[dict[str, Any]], turns: range, whose: str = "cpu") -> float:
    """Milliseconds a turn, between the readings that lie in these turns; the `driver`'s, if it is asked for."""
    inside = [sample for sample in samples if turns.start <= sample["turns"] <= turns.stop]
    first, last = inside[0], inside[-1]
    return float(MS * (last[whose] - first[whose]) / max(1, last["turns"] - first["turns"]))


def sent_in(asked: Sequence[Asked], turns: range) -> float:
    """Kilobytes a turn, the summaries' included."""
    return sum(one.request.size for one in asked if one.turn in turns) / len(turns) / KB


def turning(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a saw-tooth where it turns."""
    inner = [
        here
        for before, here, after in zip(points, points[1:], points[2:], strict=False)
        if (here[1] - before[1]) * (after[1] - here[1]) < 0
    ]
    return [*points[:1], *inner, *points[-1:]]


def figures(
    bench: Bench, samples: list[dict[str, Any]], asked: Sequence[Asked], stored: dict[str, int]
) -> list[Figure]:
    turns = bench.scale.context_turns
    compacted, broken, whole = told_apart(asked)
    early, late = fifths(turns, compacted[0].turn if compacted else turns // PARTS)
    tenths = [range(part * turns // DECILES, (part + 1) * turns // DECILES) for part in range(DECILES)]
    file = draw(bench, asked)
    sent = (sent_in(asked, early), sent_in(asked, late))
    slower = cpu_of(samples, late, "driver") / cpu_of(samples, early, "driver")
    cpu = (cpu_of(samples, early) * slower, cpu_of(samples, late))
    largest = max(one.request.tokens for one in asked)
    all_tokens = sum(one.all_tokens for one in asked)
    summed = sum(one.all_tokens for one in asked if one.request.summary)
    # By then everything that has a cap has reached it; the store's page caches (5 MB in all) do so last.
    warm = [sample for sample in samples if sample["turns"] >= max(early.stop, turns // 2)]
    own = fit([float(sample["turns"]) for sample in warm], [sample["anon"] / KB for sample in warm])
    span = warm[-1]["turns"] - warm[0]["turns"]
    return [
        Figure(
            name="context_cpu",
            title=f"CPU per turn in a conversation of {turns:,}: last fifth beside one after the first compaction",
            unit="ms",
            value=cpu[1],
            floor=cpu[0],
            goal=f"≤ {GOAL:g} ×",
            met=cpu[1] <= GOAL * cpu[0],
            note=f"the earlier is counted {slower:.2f} × as dear, as the driver's own turns became",
            detail={
                "tenths": [cpu_of(samples, tenth) for tenth in tenths],
                "driver": [cpu_of(samples, tenth, "driver") for tenth in tenths],
            },
        ),
        Figure(
            name="context_sent",
            title="bytes sent per turn, the same",
            unit="KB",
            value=sent[1],
            floor=sent[0],
            goal=f"≤ {GOAL:g} ×",
            met=sent[1] <= GOAL * sent[0],
            detail={"tenths": [sent_in(asked, tenth) for tenth in tenths]},
        ),
        Figure(
            name="context_compactions",
            title="compactions of it",
            unit="",
            value=float(len(compacted)),
            note=", ".join(f"{how} {count}" for how, count in stored.items()) + f"; plot in {file}",
            detail={"turns": [one.turn for one in compacted], "stored": stored},
        ),
        Figure(
            name="context_largest",
            title="largest of its requests, against the window",
            unit="%",
            value=100.0 * largest / WINDOW,
            goal="≤ 100 %",
            met=largest <= WINDOW,
        ),
        Figure(
            name="context_prefix",
            title="prefix reuse between compactions",
            unit="%",
            value=100.0 * whole / max(1, whole + len(broken)),
            goal="100 %",
            met=not broken,
            detail={"broken": [one.turn for one in broken][:READINGS], "whole": whole},
        ),
        Figure(
            name="context_summaries",
            title="tokens of the summaries' own calls, of all",
            unit="%",
            value=100.0 * summed / max(1, all_tokens),
        ),
        Figure(
            name="context_memory",
            title="memory slope over its second half",
            unit="KB per 1,000 turns",
            value=own.slope * 1000,
            goal="0 within noise",
            met=level(own, span),
            note=f"{own.slope * span:+,.0f} KB in {span:,} turns; readings scatter by {own.noise:,.0f} KB",
            detail={
                "tenths": [held_at(samples, tenth.stop) for tenth in tenths],
                "turns": [sample["turns"] for sample in samples],
                "anon": [sample["anon"] for sample in samples],
            },
        ),
    ]


def held_at(samples: Sequence[dict[str, Any]], turn: int) -> float:
    """Resident kilobytes at the end of a turn, by the last reading up to it."""
    return float([sample for sample in samples if sample["turns"] <= turn][-1]["rss"] / KB)


def draw(bench: Bench, asked: Sequence[Asked]) -> str:
    """The plot's name."""
    points = [(float(one.turn), float(one.request.tokens)) for one in asked if not one.request.summary]
    last = float(bench.scale.context_turns)
    picture = chart(
        "Tokens of each request of one long conversation",
        "turns",
        "tokens",
        [
            Series("request", turning(points)),
            Series("window", [(0.0, float(WINDOW)), (last, float(WINDOW))]),
        ],
    )
    file = bench.results / f"tokens-over-turns-{bench.scale.name}.svg"
    file.write_text(picture)
    return file.name


def on_disks(bench: Bench, subject: Gateway) -> list[Figure]:
    """What bulk text and short turns cost on disk, each by turns of its own at the end of the conversation."""
    short, bulk = min(SHORT_TURNS, bench.scale.context_turns // 5), bench.scale.context_turns // BULK_PART
    before, kept = used(subject), text_kept(subject)
    say(bench, subject, bulk, words=BULK_WORDS)
    after_bulk, kept_bulk = used(subject), text_kept(subject)
    say(bench, subject, short, words=5)
    after_short, kept_short = used(subject), text_kept(subject)
    share = (after_bulk - before) / (kept_bulk - kept)
    return [
        Figure(
            name="context_disk",
            title="disk per byte of long messages in it",
            unit="×",
            value=share,
            goal=f"≤ {DISK_GOAL:g} ×",
            met=share <= DISK_GOAL,
            detail={"disk": [before, after_bulk, after_short], "text": [kept, kept_bulk, kept_short]},
        ),
        Figure(
            name="context_short",
            title="disk per short turn beyond its text",
            unit="bytes",
            value=(after_short - after_bulk - (kept_short - kept_bulk)) / short,
        ),
    ]


def used(subject: Gateway) -> int:
    """Bytes of the database and the spool; pages that are free again are not counted, which the next rows take. What
    waits to be indexed is indexed first."""
    subject.call("GET", "/api/sessions?q=tide")
    on_file = on_disk(subject)
    with apsw.Connection(str(subject.database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        free = int(db.pragma("freelist_count")) * int(db.pragma("page_size"))
    db.close()
    return on_file - free


def text_kept(subject: Gateway) -> int:
    """Bytes of all that was said, called and answered, read from the store's file as it is."""
    size = 0
    with apsw.Connection(str(subject.database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        for body, packed in db.execute("SELECT body, packed FROM messages"):
            said = json.loads(zlib.decompress(body) if packed else body)
            texts = [
                said.get("text", ""),
                said.get("aside", ""),
                *(call["arguments"] for call in said.get("calls", ())),
            ]
            size += sum(len(text.encode()) for text in texts)
    db.close()
    return size


def summaries_of(subject: Gateway) -> dict[str, int]:
    """Summaries by who wrote them, and elisions."""
    with apsw.Connection(str(subject.database), flags=apsw.SQLITE_OPEN_READONLY) as db:
        rows: list[Any] = db.execute(
            "SELECT how, count(*) FROM summaries WHERE state = 'applied' GROUP BY how"
        ).fetchall()
        found: dict[str, int] = {**dict(rows), "elisions": db.execute("SELECT count(*) FROM elisions").get}
    db.close()
    return found
