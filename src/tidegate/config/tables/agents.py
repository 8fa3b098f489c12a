"""The tables `[agents.NAME]`, `[context]`, `[memory]` and `[skills]`: agents, and what their prompts contain."""

from typing import Annotated, Literal

from tidegate.config.tables.declarations import KiB, MiB
from tidegate.config.value_types import Duration, FilePath, Flag, Fraction, NameList, OneOf, Size, Text, TextLines
from tidegate.values import LANGUAGES, Frozen


class AgentSettings(Frozen, frozen=True):
    """An agent, `[agents.NAME]`, with a name of your choice, which callers use as `model`."""

    model: Annotated[str, Text(needed=True), "Name of a model in `[models.…]`."] = "main"
    fallback: Annotated[
        tuple[str, ...], NameList(once=True), "Names of models to try, in this order, if `model` fails."
    ] = ()
    fallback_for: Annotated[
        float, Duration(0), "How long a conversation uses a fallback before `model` is tried again."
    ] = 900.0
    reasoning: Annotated[
        Literal["off", "minimal", "low", "medium", "high", "max"] | None,
        OneOf("off", "minimal", "low", "medium", "high", "max"),
        "Reasoning effort; default: the provider's.",
    ] = None
    prompt: Annotated[str, Text(one_line=False, at_most=1_000_000), "The system prompt."] = (
        "You are a helpful assistant. Answer briefly and truthfully."
    )
    tools: Annotated[tuple[str, ...], NameList(), "Names of the toolsets available to the agent."] = ()
    caller_tools: Annotated[
        Literal["merge", "only", "ignore", "refuse"],
        OneOf("merge", "only", "ignore", "refuse", flags=("only", "refuse")),
        "How to treat `tools` in an API request: offer them after the agent's own, offer only them, ignore them, or "
        "respond with 400.",
    ] = "merge"
    workspace: Annotated[
        str | None,
        FilePath(),
        "A folder of yours in which all of the agent's conversations work. It must not be a user's home folder or a "
        "folder of the gateway. By default, each conversation has its own folder, which is deleted with it.",
    ] = None
    description: Annotated[str, Text(), "A one-line description that helps users choose an agent."] = ""
    approvals: Annotated[
        Literal["strict", "balanced", "autonomous"],
        OneOf("strict", "balanced", "autonomous"),
        "What the agent's tools may do without approval, unless a rule says otherwise.",
    ] = "balanced"
    rules: Annotated[
        tuple[str, ...],
        TextLines(),
        'Rules that override `approvals`, such as `"ask terminal command=git push*"`. The first match wins; '
        "see docs/approvals.md.",
    ] = ()
    recall: Annotated[
        Literal["session", "person"],
        OneOf("session", "person"),
        "What the `context` toolset may search: this conversation, or all conversations of the same user.",
    ] = "session"
    skills: Annotated[
        tuple[str, ...],
        NameList(),
        "Names of the skills offered by the `skills` toolset; default: all that are found.",
    ] = ()
    project_files: Annotated[
        tuple[str, ...],
        TextLines(),
        "Files in the agent's `workspace` to add to the prompt, by relative path; see docs/skills.md.",
    ] = ("AGENTS.md", "CLAUDE.md")
    delegates: Annotated[
        tuple[str, ...],
        NameList(),
        "Names of agents to which this agent may delegate tasks with the `delegate` toolset.",
    ] = ()
    mcp: Annotated[
        tuple[str, ...],
        TextLines(),
        'Patterns of the MCP tools that the agent may use, such as `"time__*"`; default: all that it is offered.',
    ] = ("*",)
    mcp_without: Annotated[
        tuple[str, ...], TextLines(), "Patterns of MCP tools that the agent may not use even if `mcp` allows them."
    ] = ()
    unanswered: Annotated[
        Literal["go_on", "end"],
        OneOf("go_on", "end"),
        "What a turn does if its question is not answered in time: continue without an answer, or end.",
    ] = "go_on"


class ContextSettings(Frozen, frozen=True):
    """Compaction of long conversations to fit the model's window. The transcript is never cut."""

    soft: Annotated[
        float,
        Fraction(0.1, 0.95),
        "Fraction of the window above which a summary of old messages is prepared in the background.",
    ] = 0.7
    hard: Annotated[
        float,
        Fraction(0.1, 0.98),
        "Fraction of the window above which the summary replaces old messages before the next step.",
    ] = 0.8
    keep: Annotated[
        float, Fraction(0.02, 0.9), "Fraction of the window for the newest messages, which are kept verbatim."
    ] = 0.2
    least: Annotated[
        float, Fraction(0.01, 0.9), "Minimum fraction by which a request must shrink; otherwise nothing is replaced."
    ] = 0.2
    model: Annotated[
        str, Text(), "Name of the model in `[models.…]` that writes the summaries; default: the conversation's."
    ] = ""
    index: Annotated[
        str,
        Text(),
        "Plug-in that searches messages for the `context` toolset; default: full-text search only. See "
        "docs/plugins.md.",
    ] = ""
    embeddings: Annotated[
        str,
        Text(),
        "Name of a model in `[models.…]` with `api` openai-embeddings. Messages are sent to it in the background, and "
        "searches for earlier messages also compare meanings. Requires the `vectors` extra; see docs/recall.md.",
    ] = ""
    vector_bytes: Annotated[
        int,
        Size(1 * MiB),
        "Disk space for the vectors of all messages. Once it is used up, new messages are found by their words only.",
    ] = 1024 * MiB
    language: Annotated[
        str,
        OneOf(*LANGUAGES),
        "Language whose word forms (boat, boats) are treated as equal when messages are searched; none: every form is "
        "different. After a change, all messages are reindexed in the background.",
    ] = "english"
    summary_seconds: Annotated[float, Duration(1), "Time limit for writing one summary."] = 120.0
    cooldown: Annotated[
        float, Duration(0), "Pause after a summary that could not be used, before another one is attempted."
    ] = 600.0


class MemorySettings(Frozen, frozen=True):
    """Notes that agents with the `memory` toolset keep across conversations."""

    prompt_bytes: Annotated[
        int,
        Size(256, 1 * MiB),
        "Maximum size of the notes of each kind (about the user, about the agent's work) in a new conversation.",
    ] = 4 * KiB
    notes_bytes: Annotated[
        int, Size(1 * KiB, 16 * MiB), "Maximum size of the stored notes about one user or one agent."
    ] = 64 * KiB
    related_bytes: Annotated[
        int,
        Size(0, 64 * KiB),
        "Maximum size of the notes that are offered with a message because they match it and do not fit into the "
        "prompt; 0 turns this off.",
    ] = 1 * KiB
    at_end: Annotated[bool, Flag(), "Whether a model extracts useful notes from a conversation when it ends."] = True
    model: Annotated[str, Text(), "Name of the model in `[models.…]` that extracts notes; default: the agent's."] = ""
    provider: Annotated[
        str,
        Text(at_most=64),
        "Plug-in that stores the notes in place of the gateway's own store; see docs/plugins.md.",
    ] = ""


class SkillSettings(Frozen, frozen=True):
    """Folders with skills, in addition to the skills in the gateway's home folder and in an agent's project folder; see
    docs/skills.md."""

    folders: Annotated[
        tuple[str, ...],
        TextLines(),
        "Additional folders with skills. Each skill is a subfolder that contains a SKILL.md.",
    ] = ()
