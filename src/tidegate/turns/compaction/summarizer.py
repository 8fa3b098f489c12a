"""Has summaries of old messages written by a model, and keeps them until they are applied.

Guarantee: what `write` gives covers, without a gap, everything between what is summarised already and the newest
messages, and is stored as prepared rows; or nothing is stored, and `NoSummary` says why. Either way what it cost is
written down. A summary that is too long is asked for once more, terser, and never a third time. What was undone while
it was written is not stored. The scribe holds nothing.
"""

from collections.abc import Callable, Sequence

import anyio

from tidegate.agent import SideCall, SpendGuard, run_side_call, weigh
from tidegate.agent.context import (
    INSTRUCTIONS,
    NO_SMALLER,
    TOO_LONG,
    Material,
    View,
    WindowMarks,
    chunks,
    cut_messages,
    given_bytes,
    groups,
    of_messages,
    of_summaries,
    read_summary,
    tail_from,
)
from tidegate.config import ContextSettings
from tidegate.engine import TakenTurn
from tidegate.errors import BudgetSpent, ModelFailed
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import Db, Store, SummaryHow, SummaryRow, messages, summaries, turns, usage
from tidegate.turns.budgets.budgets import Budgets
from tidegate.values import Call, Message, Usage

log = Log(__name__)

LENGTH_SHARE = 40
"""One part in so many of the window is a summary long, within the bounds below."""

LENGTHS = (150, 1500)
"""Tokens of a summary, at least and at most: fewer say nothing, more are not read."""

SUMMARIES_SHARE = 0.1
"""Of the window, that all summaries of a conversation may take; then they become one."""

GIVEN_SHARE = 0.7
"""Of what a model's window leaves beside its answer, that it is given to summarise at once."""

MOST_PIECES = 8
"""That one compaction has summarised, each in a call of its own; what is older is listed without a model."""

THOUGHTS_TOKENS = 4096
"""More, for the answer of a model that thinks before it writes."""

Give = Callable[[int, bool], Material]
"""(tokens that the summary should have, whether it is to be terser than the last one) to what a model is asked."""


def length_of(window: int) -> int:
    """Tokens that a summary should have which is shown in a window of so many."""
    least, most = LENGTHS
    return min(max(least, window // LENGTH_SHARE), most)


class NoSummary(Exception):
    """There is no summary. Its text says why, as the end of a sentence."""


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
        """Summaries of all but the newest messages of the view; `rate` is how many tokens one byte of it costs."""
        span = view.rows[: tail_from(view.rows, int(marks.keep / rate), weigh)]
        if not span:
            raise NoSummary("everything in it is new")
        writer = self._models.get(self._settings.model) if self._settings.model else model
        spend_guard = await self._budgets.spend_guard(writer, taken.session, taken.turn.job)
        window = min(writer.facts.window, marks.window) if writer is model else writer.facts.window
        pen = _Pen(side_call, writer, spend_guard, self._settings, window, min(marks.window, window))
        drafts: list[SummaryRow] = []
        try:
            drafts += await _leaves(pen, span, view.covered)
            together = (*view.summaries, *drafts)
            if sum(len(row.text) for row in together) > SUMMARIES_SHARE * marks.window / rate:
                drafts += await _condensed(pen, together[:-1])
        except (NoSummary, anyio.get_cancelled_exc_class()):
            with anyio.CancelScope(shield=True):
                await self._store.write(_bill, taken, tuple(side_call.calls), self._clock())
            raise
        return await self._store.write(_keep, taken, view.covered, drafts, tuple(side_call.calls), self._clock())


async def _leaves(pen: "_Pen", span: Sequence[tuple[int, Message]], covered: int) -> list[SummaryRow]:
    """Summaries of messages, each of as many as the model can be given at once."""
    pieces = chunks(span, pen.room, given_bytes)
    drafts: list[SummaryRow] = []
    first = covered + 1
    if len(pieces) > MOST_PIECES:
        listed = [row for piece in pieces[:-MOST_PIECES] for row in piece]
        drafts.append(_draft(0, first, listed[-1][0], "cut", "", cut_messages(listed, pen.size)))
        first = listed[-1][0] + 1
    for piece in pieces[-MOST_PIECES:]:
        text, how = await pen.write(
            lambda tokens, terse, piece=piece: of_messages(piece, tokens, terse=terse),  # type: ignore[misc]
            sum(weigh(message) for _, message in piece),
        )
        drafts.append(_draft(0, first, piece[-1][0], how, pen.model.provided, text))
        first = piece[-1][0] + 1
    return drafts


async def _condensed(pen: "_Pen", rows: Sequence[SummaryRow]) -> list[SummaryRow]:
    """Summaries of summaries, each of as many as the model can be given at once. What cannot be had is left as it is:
    the summaries that it would stand for are there."""
    drafts: list[SummaryRow] = []
    for group in groups(rows, pen.room):
        try:
            text, how = await pen.write(
                lambda tokens, terse, group=group: of_summaries(group, tokens, terse=terse),  # type: ignore[misc]
                sum(len(row.text) for row in group),
            )
        except NoSummary as useless:
            log.warning("summaries stay as they are", why=str(useless))
            return drafts
        level = max(row.level for row in group) + 1
        drafts.append(_draft(level, group[0].first, group[-1].last, how, pen.model.provided, text))
    return drafts


class _Pen:
    """One model that writes the summaries of one compaction."""

    def __init__(
        self,
        side_call: SideCall,
        model: Model,
        spend_guard: SpendGuard,
        settings: ContextSettings,
        window: int,
        shown_in: int,
    ) -> None:
        """`window` is how much it takes; the summary is for one of `shown_in` tokens."""
        self.model = model
        self._side_call = side_call
        self._spend_guard = spend_guard
        self._settings = settings
        self._tokens = length_of(shown_in)
        self.size = model.token_estimate.size(self._tokens)
        """Bytes that a summary should have."""
        room = model.token_estimate.size(int(GIVEN_SHARE * (window - min(model.facts.output, window // 2))))
        self.room = max(1, room - len(INSTRUCTIONS))
        """Bytes that it can be given at once."""

    async def write(self, give: Give, size: int) -> tuple[str, SummaryHow]:
        """A summary of something of so many bytes, and how it came about. Useless."""
        text, why = await self._ask(give(self._tokens, False), size, whole=True)
        if text:
            return text, "model"
        if why not in (TOO_LONG, NO_SMALLER):
            raise NoSummary(why)
        text, why = await self._ask(give(self._tokens // 2, True), size, whole=False)
        if not text:
            raise NoSummary(why)
        return text, "terse"

    async def _ask(self, material: Material, size: int, *, whole: bool) -> tuple[str, str]:
        facts = self.model.facts
        most = 2 * material.tokens + (THOUGHTS_TOKENS if facts.thinking != "none" else 0)
        call = Call(max_tokens=min(most, facts.output), reasoning="off")
        within = self._settings.summary_seconds
        try:
            answer = await run_side_call(
                self._side_call, self.model, self._spend_guard, material.prefix, material.message, call, within=within
            )
        except ModelFailed as failure:
            raise NoSummary(f"the model failed: {failure.brief}") from failure
        except BudgetSpent as spent:
            raise NoSummary(spent.message) from spent
        text, why = read_summary(answer, material, whole=whole)
        if text and len(text.encode(errors="replace")) > (1 - self._settings.least) * size:
            return "", NO_SMALLER
        return text, why


def _bill(db: Db, taken: TakenTurn, calls: Sequence[tuple[str, Usage]], now: float) -> None:
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
    """Stores them as prepared, if what they speak of is still what is shown; none when it is not."""
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
    """A summary that has no number yet."""
    return SummaryRow(0, level, first, last, None, "prepared", how, model, 0.0, text)
