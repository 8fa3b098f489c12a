"""Scales: the amount of work in a run. Figures mean the same at every scale; larger scales are only less noisy."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    name: str
    repeats: int
    """Repeats in which floor and gateway alternate (A B A B …)."""
    latency_sessions: int
    """Sessions of `latency_turns` turns each, one turn after another."""
    latency_turns: int
    load_sessions: int
    load_in_flight: int
    load_turns: int
    residents: int
    resident_step: int
    """Sessions between two readings of memory; the figure is the slope through these readings."""
    reload_sessions: int
    """Sessions in each repeat."""
    slope_warmup: int
    """Turns before the first reading that counts, to fill the store's page cache and the cap on residents."""
    slope_turns: int
    slope_sessions: int
    prefix_sessions: int
    prefix_turns: int
    stream_pieces: int
    """Pieces of each of 64 answers."""
    encoding_repeats: int
    tool_outputs: int
    """Turns whose tool prints 200 KB."""
    tool_processes: int
    """Sessions with a background process."""
    tool_bytes: int
    """Bytes that one tool prints in one call."""
    context_turns: int
    """Turns of one conversation whose model has a small window."""
    recall_dialogues: int
    """Generated conversations, with 60 questions about each."""
    search_messages: int
    search_queries: int
    """Queries of each kind."""
    kills: int
    crash_sessions: int
    sandbox_kills: int
    """Kills while a sandbox starts."""
    mcp_calls: int
    mcp_servers: int
    """Servers that are connected at once."""
    mcp_cycles: int
    """Starts and stops of one server."""
    settle: float
    """Seconds to wait before an idle process is read."""


TINY = Scale(
    name="tiny",
    repeats=1,
    latency_sessions=2,
    latency_turns=3,
    load_sessions=4,
    load_in_flight=2,
    load_turns=2,
    residents=6,
    resident_step=2,
    reload_sessions=2,
    slope_warmup=20,
    slope_turns=40,
    slope_sessions=10,
    prefix_sessions=2,
    prefix_turns=2,
    stream_pieces=5,
    encoding_repeats=1,
    tool_outputs=2,
    tool_processes=2,
    tool_bytes=2_000_000,
    context_turns=150,
    recall_dialogues=1,
    search_messages=2_000,
    search_queries=3,
    kills=2,
    crash_sessions=3,
    sandbox_kills=3,
    mcp_calls=200,
    mcp_servers=3,
    mcp_cycles=10,
    settle=0.05,
)

QUICK = Scale(
    name="quick",
    repeats=5,
    latency_sessions=60,
    latency_turns=10,
    load_sessions=64,
    load_in_flight=16,
    load_turns=40,
    residents=800,
    resident_step=100,
    reload_sessions=20,
    slope_warmup=5_000,
    slope_turns=5_000,
    slope_sessions=1_000,
    prefix_sessions=8,
    prefix_turns=6,
    stream_pieces=150,
    encoding_repeats=30,
    tool_outputs=200,
    tool_processes=500,
    tool_bytes=1_000_000_000,
    context_turns=10_000,
    recall_dialogues=12,
    search_messages=100_000,
    search_queries=100,
    kills=10,
    crash_sessions=8,
    sandbox_kills=200,
    mcp_calls=2000,
    mcp_servers=50,
    mcp_cycles=100,
    settle=1.0,
)

FULL = Scale(
    name="full",
    repeats=9,
    latency_sessions=150,
    latency_turns=10,
    load_sessions=64,
    load_in_flight=16,
    load_turns=60,
    residents=3_000,
    resident_step=250,
    reload_sessions=40,
    slope_warmup=10_000,
    slope_turns=100_000,
    slope_sessions=20_000,
    prefix_sessions=32,
    prefix_turns=10,
    stream_pieces=300,
    encoding_repeats=60,
    tool_outputs=200,
    tool_processes=500,
    tool_bytes=1_000_000_000,
    context_turns=10_000,
    recall_dialogues=24,
    search_messages=1_000_000,
    search_queries=100,
    kills=50,
    crash_sessions=12,
    sandbox_kills=200,
    mcp_calls=6000,
    mcp_servers=50,
    mcp_cycles=1000,
    settle=2.0,
)

SCALES = {scale.name: scale for scale in (TINY, QUICK, FULL)}
