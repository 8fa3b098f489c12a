"""Slope of memory over many turns in many sessions, with the ordinary caps: plain turns, some streamed, some with
tools.

The line is fitted to anonymous memory (including swap) after a warm-up in which everything that has a cap fills up (the
store's page cache, the residents, the pools). It is level if its gain over the measured part is at most twice the
scatter of the readings around it, or less than one percent of the process's memory.

The same run shows whether a turn costs more when the store is large: the work of a turn must depend on new messages,
not on stored ones.
"""

from typing import Any

from bench.readings import Line, fit
from bench.report import Figure
from bench.suite import Bench
from bench.suite.prefix import TOOL_CALL, TOOLS
from bench.svg import Series, chart

READINGS = 200
WITHIN = 3600.0
TOLERATED = 0.01
KB = 1024.0


def level(line: Line, turns: float) -> bool:
    """Whether a line (KB over turns) has no slope, within its noise."""
    gain = line.slope * turns
    return gain <= max(2 * line.noise, TOLERATED * line.start)


def drive(bench: Bench) -> dict[str, Any]:
    scale = bench.scale
    with bench.make_measured(tools=TOOLS) as subject:
        each = max(1, scale.slope_turns // scale.slope_sessions)
        bench.say(f"slope: {scale.slope_turns:,} turns in {scale.slope_sessions:,} sessions, and a warm-up")
        durable = bench.subject == "gateway"
        return bench.drive(
            subject,
            "slope",
            sessions=scale.slope_sessions + scale.slope_warmup // each,
            turns=each,
            window=32,
            in_flight=8,
            filler=80,
            stream_every=5,
            tool_every=10 if durable else 0,
            tool=TOOL_CALL,
            sample="subject",
            sample_every=max(1, scale.slope_turns // READINGS),
            within=WITHIN,
        )


def growth(samples: list[dict[str, Any]]) -> float:
    """CPU per turn in the last quarter of the readings, relative to the first quarter."""
    part = len(samples) // 4

    def cost(first: dict[str, Any], last: dict[str, Any]) -> float:
        return float((last["cpu"] - first["cpu"]) / (last["turns"] - first["turns"]))

    earlier = cost(samples[0], samples[part])
    # A few turns may cost less than the resolution of the kernel's clock.
    return cost(samples[-1 - part], samples[-1]) / earlier if earlier else 1.0


def run(bench: Bench) -> list[Figure]:
    samples = drive(bench)["samples"]
    turns = [float(sample["turns"]) for sample in samples]
    rss = [sample["rss"] / KB for sample in samples]
    anon = [sample["anon"] / KB for sample in samples]
    warm = next(place for place, turn in enumerate(turns) if turn >= bench.scale.slope_warmup)
    span = turns[-1] - turns[warm]
    lines = {"rss": fit(turns[warm:], rss[warm:]), "anon": fit(turns[warm:], anon[warm:])}
    own = lines["anon"]
    picture = chart(
        f"Memory of the {bench.subject} over turns",
        "turns",
        "MB",
        [
            Series("RSS", [(turn, held / KB) for turn, held in zip(turns, rss, strict=True)]),
            Series("RssAnon + VmSwap", [(turn, held / KB) for turn, held in zip(turns, anon, strict=True)]),
        ],
    )
    file = bench.results / f"memory-over-turns-{bench.scale.name}.svg"
    file.write_text(picture)
    return [
        Figure(
            name="slope",
            title=f"memory slope over {bench.scale.slope_turns:,} turns",
            unit="KB per 1,000 turns",
            value=own.slope * 1000,
            goal="0 within noise",
            met=level(own, span),
            note=(
                f"{own.slope * span:+,.0f} KB in the last {span:,.0f} turns; readings scatter by {own.noise:,.0f} KB; "
                f"RSS {lines['rss'].slope * 1000:+.1f} KB per 1,000 turns; plot in {file.name}"
            ),
            detail={"noise": own.noise, "rss": lines["rss"].slope * 1000, "turns": turns, "anon": anon, "all": rss},
        ),
        Figure(
            name="growth",
            title="CPU per turn at the end of that run, against its beginning",
            unit="×",
            value=growth(samples[warm:]),
            detail={"turns": turns, "cpu": [sample["cpu"] for sample in samples]},
        ),
    ]
