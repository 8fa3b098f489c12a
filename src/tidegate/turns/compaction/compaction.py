"""Keeps every conversation within its model's window, without losing a word of it.

Guarantee: no row of a transcript is changed. Above the soft mark a summary of what is old is prepared beside the turn;
above the hard one the request is made smaller before the model is asked, in stages of which each is bounded and the
last needs no model, so that it always ends: summaries by a model, excerpts of old results, a list without a model,
excerpts of everything. A stage is applied only if the request is smaller by the share that is configured, the last
ones if it fits then. What is applied is rows, so that the request is the same after a restart. After a summary of no
use no model is asked for one until a time in the store is over. One conversation's compaction holds up no other, and
none begins inside another.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from tidegate.agent import Conversation, Remedy, SideCall
from tidegate.agent.context import SAVES_TOO_LITTLE, View, WindowMarks, window_marks
from tidegate.config import ContextSettings
from tidegate.engine import Journal, TakenTurn
from tidegate.errors import ModelFailed, TidegateError
from tidegate.lifetimes import Scope
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import Db, ElisionRow, SessionRow, Store, SummaryRow, messages, settings, summaries
from tidegate.turns.budgets.budgets import Budgets
from tidegate.turns.compaction.reduction import ReductionStage, RequestSize, cut, marks_for, stages, write_stage
from tidegate.turns.compaction.summarizer import NoSummary, Summarizer
from tidegate.values import Notice

log = Log(__name__)

COOLDOWN = "summaries"
"""The setting that says that no model is asked for a summary for a while."""

WANTED = "compact"
"""The setting by which a person asks for a compaction with the next turn."""

ERA = "thoughts"
"""The setting that says how often a provider has refused what a session's answers carried."""

WITHOUT_THOUGHTS = (
    "The model {model} refuses its earlier thoughts, as it does under another account's key: it goes on without them, "
    "and the provider counts the conversation as new once."
)

HOW = ("summary", "excerpts", "cut", "media", "useless")
"""Ways in which requests were made smaller; the last are summaries that were of no use."""

UNCONDENSED = 2
"""Times as long as they may be are summaries left that a model has just written: they could not be condensed yet."""

PREPARED_AT_ONCE = 4
"""Summaries that are written beside turns at a time; others wait, or are written when they are needed."""

REFUSED_SHARE = 0.6
"""Of what is said in a request that a provider has refused as too long: what it is cut to. Our count was wrong."""


class Compaction:
    """What all conversations share: settings, the scribe, and counts."""

    def __init__(
        self,
        scope: Scope,
        store: Store,
        models: Models,
        config: ContextSettings,
        budgets: Budgets,
        clock: Callable[[], float],
        remind: Callable[[SessionRow], Awaitable[None]] | None = None,
    ) -> None:
        """`remind` is told of each session of which more is summarised: what it was told may be gone from sight."""
        self.remind = remind
        self.scope = scope
        self.store = store
        self.settings = config
        self.summarizer = Summarizer(store, models, config, budgets, clock)
        self.clock = clock
        self.counts: Counter[str] = Counter()  # house: allow one for each way of making a request smaller
        """How often a request was made smaller, by how."""
        self.pens = asyncio.Semaphore(PREPARED_AT_ONCE)
        self._marks: dict[str, WindowMarks] = {}  # house: allow one for each configured model

    def marks(self, model: Model) -> WindowMarks:
        found = self._marks.get(model.name)
        if found is None:
            found = self._marks[model.name] = window_marks(model.facts, self.settings)
        return found

    async def view(self, taken: TakenTurn, *, past: bool = False) -> View:
        """What is shown of the conversation; only what was before this turn if it is the `past`."""
        view: View = await self.store.read(read_view, taken.session.id, taken.turn.id if past else None)
        return view


class TurnFitter:
    """Sees to one turn's conversation, whoever it is with."""

    __slots__ = ("_cools", "_house", "_journal", "_taken", "_wanted")

    _cools: tuple[float, str] | None
    """As the store had it when the turn was taken; what happened since is on the conversation."""

    def __init__(self, house: Compaction, journal: Journal, taken: TakenTurn) -> None:
        self._house = house
        self._journal = journal
        self._taken = taken
        found = (setting for setting in taken.settings if setting.key == COOLDOWN)
        self._cools = next(((setting.expires or 0.0, str(setting.value)) for setting in found), None)
        self._wanted = any(setting.key == WANTED for setting in taken.settings)

    def is_due(self, conversation: Conversation) -> bool:
        soft = self._house.marks(conversation.model).soft
        return conversation.is_outdated or self._wanted or conversation.tokens > soft

    async def fit(self, conversation: Conversation) -> None:
        if conversation.is_outdated:
            view = await self._house.view(self._taken)
            conversation.rebuild(view.messages(), view.mark)
        marks = self._house.marks(conversation.model)
        tokens = conversation.tokens
        if self._is_callers:
            if tokens > marks.window:
                raise self._too_long(conversation, tokens)
            return
        if self._wanted:
            self._wanted = False
            self._cools = conversation.cooldown = None
            await self._house.store.write(settings.clear, self._taken.session.id, WANTED)
            await self._shrink(conversation, marks.hard)
        elif tokens > marks.hard:
            await self._shrink(conversation, marks.hard)
        elif tokens > marks.soft and self._may_prepare(conversation):
            conversation.summary_task = self._house.scope.start(
                self._prepare, conversation, name="a summary beside a turn"
            )

    async def apply_remedy(self, conversation: Conversation, remedy: Remedy, failure: ModelFailed) -> bool:
        if remedy == "thoughts":
            return await self._forget_thoughts(conversation)
        if remedy == "documents":
            return await self._hide_media(conversation, documents=True)
        if remedy == "size" and await self._hide_media(conversation):
            return True
        if self._is_callers:
            return False
        before, fixed = conversation.tokens, conversation.prefix_tokens
        log.info("a model takes less than was thought", model=conversation.model.name, tokens=before)
        try:
            await self._shrink(conversation, fixed + int(REFUSED_SHARE * (before - fixed)))
        except ModelFailed:
            return False
        return conversation.tokens < before

    async def _forget_thoughts(self, conversation: Conversation) -> bool:
        """Go on without what earlier answers carried; over unload and restart, so that it is refused once."""
        if not conversation.carries:
            return False
        name, session = conversation.model.name, self._taken.session
        log.warning("a model refuses its earlier thoughts: it goes on without them", model=name)
        self._journal.emit(Notice(text=WITHOUT_THOUGHTS.format(model=name)))
        view = await self._house.view(self._taken)
        conversation.drop_carried(view.messages())
        if session.kind != "ephemeral":
            now = self._house.clock()
            await self._house.store.write(settings.put, session.id, ERA, conversation.era, "refused", now, None)
        return True

    @property
    def _is_callers(self) -> bool:
        """Whether the request holds just what the caller of a one-shot call sent: whoever keeps a conversation is told
        when it is too long, and shortens it."""
        one_shot = self._taken.session.kind == "ephemeral" and self._taken.turn.within is None
        return one_shot and self._journal.steps == 0

    def _too_long(self, conversation: Conversation, tokens: int) -> ModelFailed:
        return ModelFailed(
            # The first words are those by which clients of OpenAI's API know this failure.
            "Input tokens exceed the configured limit: this model's maximum context length is "
            f"{conversation.model.facts.window} tokens, and the messages have about {tokens}. Shorten them, or name a "
            "session, whose history is kept for you.",
            kind="context",
            retryable=False,
        )

    # -- beside the turn --

    def _may_prepare(self, conversation: Conversation) -> bool:
        """A one-shot call is over before its summary would be needed."""
        kept = self._taken.session.kind != "ephemeral"
        return kept and conversation.summary_task is None and not self._why_not(conversation)

    def _why_not(self, conversation: Conversation) -> str:
        """Why no model is asked for a summary now; empty when one may be."""
        until, why = conversation.cooldown or self._cools or (0.0, "")
        return why if self._house.clock() < until else ""

    async def _prepare(self, conversation: Conversation) -> None:
        """Have summaries written for when the hard mark is passed."""
        try:
            async with self._house.pens:
                work = await self._work(conversation, self._house.marks(conversation.model).hard)
                there = await self._house.store.read(summaries.prepared, self._taken.session.id)
                if work.could_save and not there:
                    await self._write(conversation, work, SideCall(self._taken.session.id))
        except NoSummary as useless:
            await self._cool(conversation, str(useless))
        except TidegateError as error:
            log.warning("a summary could not be prepared", session=self._taken.session.id, error=error.message)

    async def _work(self, conversation: Conversation, most: int) -> RequestSize:
        view = await self._house.view(self._taken)
        marks = marks_for(self._house.marks(conversation.model), conversation, most)
        return RequestSize(conversation, view, self._house.settings.least, most, marks)

    async def _cool(self, conversation: Conversation, why: str) -> None:
        """Ask no model for a summary for a while; over turns and restarts."""
        self._house.counts["useless"] += 1
        log.warning("a summary was of no use", session=self._taken.session.id, why=why)
        now = self._house.clock()
        until = now + self._house.settings.cooldown
        conversation.cooldown = (until, why)
        if until > now and self._taken.session.kind != "ephemeral":
            await self._house.store.write(settings.put, self._taken.session.id, COOLDOWN, why, "compaction", now, until)

    # -- before the next step --

    async def _shrink(self, conversation: Conversation, most: int) -> None:
        """Have what is old summarised, and make the request no larger than `most` tokens."""
        if conversation.prefix_tokens >= most:
            raise self._too_small(conversation)
        await self._await_prepared(conversation)
        work = await self._work(conversation, most)
        view = work.view
        why = await self._summarise(conversation, work)
        for stage in stages(work):
            if work.fits:
                break
            await self._take(work, stage)
        if work.lists_too_much(1 if why else UNCONDENSED):
            await self._take(work, cut(work, 0)._replace(last_resort=True))
        if work.view is not view:
            conversation.rebuild(work.view.messages(), work.view.mark, tokens=work.tokens(work.view))
        if not work.fits:
            raise self._too_small(conversation)
        self._tell(view, work, why)
        if work.view.covered > view.covered and self._house.remind is not None:
            await self._house.remind(self._taken.session)

    async def _await_prepared(self, conversation: Conversation) -> None:
        """What is being written beside the turn is waited for, not written twice."""
        task, conversation.summary_task = conversation.summary_task, None
        if task is None:
            return
        with anyio.move_on_after(2 * self._house.settings.summary_seconds):
            await asyncio.wait({task})
        if not task.done():
            task.cancel()

    async def _summarise(self, conversation: Conversation, work: RequestSize) -> str:
        """Use what was prepared, or have it written now. Why there is nothing, or empty."""
        session, house = self._taken.session.id, self._house
        rows: list[SummaryRow] = await house.store.read(summaries.prepared, session)
        if not work.is_worth(rows):
            if why := self._why_not(conversation):
                return why
            if not work.could_save:
                return "too little of it is old"
            side_call = SideCall(session, emit=self._journal.emit, usage=self._journal.usage)
            try:
                rows = await self._write(conversation, work, side_call)
            except NoSummary as useless:
                await self._cool(conversation, str(useless))
                return str(useless)
            finally:
                for _, used in side_call.calls:
                    self._journal.add_usage(used)
        if not work.is_worth(rows):
            await house.store.write(summaries.drop_prepared, session)
            await self._cool(conversation, SAVES_TOO_LITTLE)
            return SAVES_TOO_LITTLE
        await house.store.write(summaries.apply, session, [row.number for row in sorted(rows, key=_by_level)])
        work.view = await house.view(self._taken)
        house.counts["summary"] += 1
        return ""

    async def _write(self, conversation: Conversation, work: RequestSize, side_call: SideCall) -> list[SummaryRow]:
        model = conversation.model
        return await self._house.summarizer.write(side_call, self._taken, work.view, model, work.marks, work.rate)

    async def _take(self, work: RequestSize, stage: ReductionStage) -> None:
        """If it makes the request smaller by the share that is configured; what is a last resort, if it fits then."""
        enough = stage.last_resort and work.smaller(stage.view) and work.would_fit(stage.view)
        if not enough and not work.saves(stage.view):
            return
        await self._house.store.write(write_stage, self._taken.session.id, stage, self._house.clock())
        work.view = await self._house.view(self._taken)
        self._house.counts["excerpts" if stage.cut is None else "cut"] += 1

    async def _hide_media(self, conversation: Conversation, *, documents: bool = False) -> bool:
        """Media is told in words: all but that of the last message that has any, or that too. With `documents` only
        messages that bring documents count; other media up to the last of them is told in words with them."""
        view = await self._house.view(self._taken)
        takes = conversation.model.wire.takes
        shown = [
            place
            for (place, _), message in zip(view.rows, view.shown_rows(), strict=True)
            if any(takes(media.media_type) for media in message.media if media.is_document or not documents)
        ]
        if not shown:
            return False
        last = shown[-2] if len(shown) > 1 else shown[-1]
        elision = ElisionRow(view.covered + 1, last, "media", 0)
        await self._house.store.write(summaries.elide, self._taken.session.id, elision, self._house.clock())
        view = await self._house.view(self._taken)
        conversation.rebuild(view.messages(), view.mark)
        self._house.counts["media"] += 1
        which = f"{'older' if len(shown) > 1 else 'the'} pictures, sounds and documents are"
        why = (
            "The model's endpoint refused a document"
            if documents
            else "The request was too large for the model's endpoint"
        )
        self._journal.emit(Notice(text=f"{why}: {which} told in words."))
        return True

    def _tell(self, before: View, work: RequestSize, why: str) -> None:
        view = work.view
        if view is before:
            if why:
                self._journal.emit(Notice(text=f"This conversation was not summarised: {why}."))
            return
        told = []
        if why:
            told.append(f"A summary of older messages could not be had ({why.rstrip('.')}).")
        if view.covered > before.covered:
            how = "a list of them" if view.summaries[-1].how == "cut" else "a summary"
            told.append(f"The model is shown {how} instead of messages {before.covered + 1} to {view.covered}.")
        elif len(view.summaries) < len(before.summaries):
            told.append("Older summaries became one.")
        if view.elisions != before.elisions:
            told.append("The model is shown excerpts of long messages.")
        told.append("Nothing is deleted; the provider counts the conversation as new once.")
        self._journal.emit(Notice(text=" ".join(told)))

    def _too_small(self, conversation: Conversation) -> ModelFailed:
        marks, fixed = self._house.marks(conversation.model), conversation.prefix_tokens
        return ModelFailed(
            f"Model {conversation.model.name!r}: its window of {marks.window:,} tokens, of which a request may have "
            f"{marks.hard:,}, is too small for this agent, whose prompt and tools alone take about {fixed:,} (/context "
            "says what of it); give it a model with a larger window, or less of them.",
            kind="context",
            retryable=False,
        )


def read_view(db: Db, session: str, before_turn: str | None) -> View:
    """What is shown of a session, without the rows of `before_turn`."""
    shown = tuple(summaries.shown(db, session))
    covered = shown[-1].last if shown else 0
    elisions = tuple(summaries.elisions(db, session, covered))
    inside = False
    if before_turn is not None and (shown or elisions):
        first = messages.first_of(db, before_turn)
        reach = max(covered, *(row.last for row in elisions)) if elisions else covered
        inside = first is not None and first <= reach
    rows = tuple(messages.placed(db, session, after=covered, before_turn=before_turn))
    return View(rows=rows, summaries=shown, elisions=elisions, inside=inside)


def _by_level(row: SummaryRow) -> tuple[int, int]:
    return row.level, row.first
