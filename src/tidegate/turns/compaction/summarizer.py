"""Summaries of old messages, written by a model and stored until they are applied.

The result of `write` covers everything between the messages already summarised and the newest ones without gaps, and is
stored as prepared rows. If no such result can be written, nothing is stored, and `NoSummary` contains the reason. The
cost is recorded in either case. If a summary is too long, a shorter one is requested, but only once. If messages have
been undone in the meantime, no summary of them is stored. The summarizer has no state.
"""

import contextlib
from collections.abc import Callable, Sequence

import anyio

from tidegate.agent import SideCall, SpendGuard, run_side_call, weigh
from tidegate.agent.context import (
    INSTRUCTIONS,
    SAVES_TOO_LITTLE,
    TOO_LONG,
    SummaryRequest,
    View,
    WindowMarks,
    chunks,
    outline_messages,
    read_summary,
    request_bytes_of,
    request_for_messages,
    request_for_summaries,
    summary_groups,
    tail_start,
)
from tidegate.config import ContextSettings
from tidegate.engine import TakenTurn
from tidegate.errors import BudgetSpent, ModelFailed, Superseded
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import Db, Store, SummaryHow, SummaryRow, messages, summaries, turns, usage
from tidegate.turns.budgets.budgets import Budgets
from tidegate.values import Call, Message, Usage

log = Log(__name__)

LENGTH_SHARE = 40
"""Determines the length of a summary, within the bounds below: 40 means one fortieth of the window."""

LENGTHS = (150, 1500)
"""Minimum and maximum length of a summary in tokens. A shorter summary would say too little, and a longer one would not
be read."""

SUMMARIES_SHARE = 0.1
"""The share of the window that all of a conversation's summaries may take together. Beyond that, they are merged."""

GIVEN_SHARE = 0.7
"""The share of a model's window, less its answer, that one summary request may fill."""

MOST_PIECES = 8
"""Maximum number of pieces that one compaction summarises, each with a separate model call. Older messages are listed
without a model."""

REASONING_TOKENS = 4096
"""Additional tokens for the answers of models that reason before they write."""

MakeRequest = Callable[[int, bool], SummaryRequest]
"""Creates a request for a summary. The arguments are the summary's length in tokens, and True if it must be shorter
than the previous one."""


def length_of(window: int) -> int:
    """Returns the length of a summary, in tokens, for a window of this size."""
    least, most = LENGTHS
    return min(max(least, window // LENGTH_SHARE), most)


class NoSummary(Exception):
    """Raised if no summary could be written. The message is the reason, phrased as the end of a sentence."""


class Summarizer:
    def __init__(
        self, store: Store, models: Models, settings: ContextSettings, budgets: Budgets, clock: Callable[[], float]
    ) -> None:
        self._store = store
        self._models = models
        self._settings = settings
        self._budgets = budgets
        self._clock = clock

    async def write(
        self, side_call: SideCall, taken: TakenTurn, view: View, model: Model, marks: WindowMarks, rate: float
    ) -> list[SummaryRow]:
        """Summarises all messages of the view except the newest ones. `rate` is the number of tokens per byte."""
        span = view.rows[: tail_start(view.rows, int(marks.keep / rate), weigh)]
        if not span:
            raise NoSummary("all of its messages are recent")
        author = self._models.get(self._settings.model) if self._settings.model else model
        spend_guard = await self._budgets.spend_guard(author, taken.session, taken.turn.job)
        window = min(author.facts.window, marks.window) if author is model else author.facts.window
        writer = _SummaryWriter(side_call, author, spend_guard, self._settings, window, min(marks.window, window))
        drafts: list[SummaryRow] = []
        try:
            drafts += await _leaves(writer, span, view.covered)
            together = (*view.summaries, *drafts)
            if sum(len(row.text) for row in together) > SUMMARIES_SHARE * marks.window / rate:
                drafts += await _condensed(writer, together[:-1])
        except (NoSummary, anyio.get_cancelled_exc_class()):
            with anyio.CancelScope(shield=True), contextlib.suppress(Superseded):
                await self._store.write(_bill, taken, tuple(side_call.calls), self._clock())
            raise
        return await self._store.write(_keep, taken, view.covered, drafts, tuple(side_call.calls), self._clock())


async def _leaves(writer: "_SummaryWriter", span: Sequence[tuple[int, Message]], covered: int) -> list[SummaryRow]:
    """Summarises messages. Each request contains as many of them as the model accepts."""
    pieces = chunks(span, writer.capacity, request_bytes_of)
    drafts: list[SummaryRow] = []
    first = covered + 1
    if len(pieces) > MOST_PIECES:
        listed = [row for piece in pieces[:-MOST_PIECES] for row in piece]
        drafts.append(_draft(0, first, listed[-1][0], "cut", "", outline_messages(listed, writer.size)))
        first = listed[-1][0] + 1
    for piece in pieces[-MOST_PIECES:]:
        text, how = await writer.write(
            lambda tokens, terse, piece=piece: request_for_messages(piece, tokens, terse=terse),  # type: ignore[misc]
            sum(weigh(message) for _, message in piece),
        )
        drafts.append(_draft(0, first, piece[-1][0], how, writer.model.provider_model, text))
        first = piece[-1][0] + 1
    return drafts


async def _condensed(writer: "_SummaryWriter", rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """Condenses summaries. Each request contains as many of them as the model accepts. If a request fails, the
    summaries that its result would have replaced are kept."""
    drafts: list[SummaryRow] = []
    for group in summary_groups(rows, writer.capacity):
        try:
            text, how = await writer.write(
                lambda tokens, terse, group=group: request_for_summaries(group, tokens, terse=terse),  # type: ignore[misc]
                sum(len(row.text) for row in group),
            )
        except NoSummary as useless:
            log.warning("summaries stay as they are", why=str(useless))
            return drafts
        level = max(row.level for row in group) + 1
        drafts.append(_draft(level, group[0].first, group[-1].last, how, writer.model.provider_model, text))
    return drafts


class _SummaryWriter:
    """Writes one compaction's summaries with a model."""

    def __init__(
        self,
        side_call: SideCall,
        model: Model,
        spend_guard: SpendGuard,
        settings: ContextSettings,
        window: int,
        shown_in: int,
    ) -> None:
        """`window` is the context window of the model that writes the summary. The summary is for a window of
        `shown_in` tokens."""
        self.model = model
        self._side_call = side_call
        self._spend_guard = spend_guard
        self._settings = settings
        self._tokens = length_of(shown_in)
        self.size = model.token_estimate.size(self._tokens)
        """The target size of summaries in bytes."""
        capacity = model.token_estimate.size(int(GIVEN_SHARE * (window - min(model.facts.output, window // 2))))
        self.capacity = max(1, capacity - len(INSTRUCTIONS))
        """The number of bytes that the model accepts in one request."""

    async def write(self, make_request: MakeRequest, size: int) -> tuple[str, SummaryHow]:
        """Returns a summary of an input of `size` bytes, and how it was created. Raises NoSummary."""
        text, why = await self._ask(make_request(self._tokens, False), size, complete=True)
        if text:
            return text, "model"
        if why not in (TOO_LONG, SAVES_TOO_LITTLE):
            raise NoSummary(why)
        text, why = await self._ask(make_request(self._tokens // 2, True), size, complete=False)
        if not text:
            raise NoSummary(why)
        return text, "terse"

    async def _ask(self, request: SummaryRequest, size: int, *, complete: bool) -> tuple[str, str]:
        facts = self.model.facts
        most = 2 * request.tokens + (REASONING_TOKENS if facts.thinking != "none" else 0)
        call = Call(max_tokens=min(most, facts.output), reasoning="off")
        within = self._settings.summary_seconds
        try:
            answer = await run_side_call(
                self._side_call, self.model, self._spend_guard, request.prefix, request.message, call, within=within
            )
        except ModelFailed as failure:
            raise NoSummary(f"the model failed: {failure.brief}") from failure
        except BudgetSpent as spent:
            raise NoSummary(spent.message) from spent
        text, why = read_summary(answer, request, complete=complete)
        if text and len(text.encode(errors="replace")) > (1 - self._settings.least) * size:
            return "", SAVES_TOO_LITTLE
        return text, why


def _bill(db: Db, taken: TakenTurn, calls: Sequence[tuple[str, Usage]], now: float) -> None:
    turns.check_fence(db, taken.turn.id, taken.turn.fence)
    for model, tokens in calls:
        usage.add(
            db,
            session=taken.turn.payer,
            principal=taken.session.principal,
            agent=taken.session.agent,
            channel=taken.turn.channel,
            job=taken.turn.job,
            model=model,
            turn=taken.turn.id,
            tokens=tokens,
            now=now,
        )
        turns.add_usage(db, taken.turn.id, tokens)


def _keep(
    db: Db,
    taken: TakenTurn,
    covered: int,
    drafts: Sequence[SummaryRow],
    calls: Sequence[tuple[str, Usage]],
    now: float,
) -> list[SummaryRow]:
    """Stores the drafts as prepared, unless the model's view has changed in the meantime."""
    _bill(db, taken, calls, now)
    session = taken.session.id
    shown = summaries.shown(db, session)
    last = max(draft.last for draft in drafts)
    if (shown[-1].last if shown else 0) != covered or not messages.is_shown(db, session, last):
        return []
    summaries.drop_prepared(db, session)
    for draft in drafts:
        summaries.add(db, session, draft, now)
    return summaries.prepared(db, session)


def _draft(level: int, first: int, last: int, how: SummaryHow, model: str, text: str) -> SummaryRow:
    """Returns a summary that has no number yet."""
    return SummaryRow(0, level, first, last, None, "prepared", how, model, 0.0, text)
