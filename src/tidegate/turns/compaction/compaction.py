"""Compaction: keeps every conversation within its model's context window, and deletes nothing.

Transcript rows are never changed. Above the soft mark, a summary of older messages is prepared in the background. Above
the hard mark, the request is reduced before the model is called, in bounded stages: summaries by a model, excerpts of
old results, a list of messages, excerpts of everything. The last stages need no model, so reduction always terminates.
A stage is applied only if it reduces the request by the configured share or, for the last ones, makes it fit. Applied
stages are stored as rows, so the request is the same after a restart. After a summary that could not be used, none is
requested until a time recorded in the store. Compacting one conversation never delays another, and compactions are
never nested.

All conversations share one `Compaction`; a `TurnFitter` belongs to one turn.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

import anyio

from tidegate.agent import Conversation, Remedy, SideCall, Turn
from tidegate.agent.context import SAVES_TOO_LITTLE, View, WindowMarks, window_marks
from tidegate.config import ContextSettings
from tidegate.engine import TakenTurn
from tidegate.errors import ModelFailed, Superseded, TidegateError
from tidegate.lifetimes import Scope
from tidegate.log import Log
from tidegate.models import Model, Models
from tidegate.store import Db, ElisionRow, SessionRow, Store, SummaryRow, messages, settings, summaries
from tidegate.turns.budgets.budgets import Budgets
from tidegate.turns.compaction.reduction import ReductionStage, RequestSize, cut, marks_for, stages, write_stage
from tidegate.turns.compaction.summarizer import NoSummary, Summarizer
from tidegate.values import Notice

log = Log(__name__)

SUMMARY_COOLDOWN = "summaries"
"""The setting that suspends summaries written by a model for a while."""

COMPACTION_REQUESTED = "compact"
"""The setting with which a user requests a compaction in the next turn."""

REASONING_ERA = "thoughts"
"""The setting that counts how often a provider has refused the reasoning carried by a session's answers."""

WITHOUT_REASONING = (
    "The model {model} refuses its earlier reasoning, for example because the key belongs to another account. It "
    "continues without it, and the provider bills the conversation in full once."
)

REDUCTIONS = ("summary", "excerpts", "cut", "media", "useless")
"""The ways in which requests are reduced, for the metrics. The last entry counts useless summaries."""

UNCONDENSED = 2
"""The factor by which summaries may exceed their length limit right after a model has written them, before they can be
condensed."""

PREPARED_AT_ONCE = 4
"""Number of summaries prepared concurrently. Further summaries wait, or are written when they are needed."""

REFUSED_SHARE = 0.6
"""The share to which a request's messages are reduced after a provider has refused the request as too long, since the
estimate was then evidently wrong."""


class Compaction:
    """What all conversations share: the settings, the summarizer and the counts."""

    def __init__(
        self,
        scope: Scope,
        store: Store,
        models: Models,
        config: ContextSettings,
        budgets: Budgets,
        clock: Callable[[], float],
        on_summarised: Callable[[SessionRow], Awaitable[None]] | None = None,
    ) -> None:
        """`on_summarised` is called for a session whenever more of its messages have been summarised, because the model
        may then no longer see earlier notices."""
        self.on_summarised = on_summarised
        self.scope = scope
        self.store = store
        self.settings = config
        self.summarizer = Summarizer(store, models, config, budgets, clock)
        self.clock = clock
        self.counts: Counter[str] = Counter()  # lint: allow one for each kind of reduction
        """The number of reductions, by kind."""
        self.summary_slots = asyncio.Semaphore(PREPARED_AT_ONCE)
        self._marks: dict[str, WindowMarks] = {}  # lint: allow one for each configured model

    def marks(self, model: Model) -> WindowMarks:
        found = self._marks.get(model.name)
        if found is None:
            found = self._marks[model.name] = window_marks(model.facts, self.settings)
        return found

    async def view(self, taken: TakenTurn, *, past: bool = False) -> View:
        """Returns the model's view of the conversation. If `past` is given, the view contains only the messages before
        this turn."""
        view: View = await self.store.read(read_view, taken.session.id, taken.turn.id if past else None)
        return view


class TurnFitter:
    """Fits one turn's conversation into the context window of the model in use."""

    __slots__ = ("_compaction", "_cools", "_taken", "_turn", "_wanted")

    _cools: tuple[float, str] | None
    """The cooldown that was in the store when the turn was taken. Later changes are recorded on the conversation."""

    def __init__(self, compaction: Compaction, turn: Turn, taken: TakenTurn) -> None:
        self._compaction = compaction
        self._turn = turn
        self._taken = taken
        found = (setting for setting in taken.settings if setting.key == SUMMARY_COOLDOWN)
        self._cools = next(((setting.expires or 0.0, str(setting.value)) for setting in found), None)
        self._wanted = any(setting.key == COMPACTION_REQUESTED for setting in taken.settings)

    async def fit(self, conversation: Conversation) -> None:
        if conversation.is_outdated:
            view = await self._compaction.view(self._taken)
            conversation.rebuild(view.messages(), view.mark)
        marks = self._compaction.marks(conversation.model)
        tokens = conversation.tokens
        if self._is_callers:
            if tokens > marks.window:
                raise self._too_long(conversation, tokens)
            return
        if self._wanted:
            self._wanted = False
            self._cools = conversation.cooldown = None
            await self._turn.write(settings.clear, self._taken.session.id, COMPACTION_REQUESTED)
            await self._shrink(conversation, marks.hard)
        elif tokens > marks.hard:
            await self._shrink(conversation, marks.hard)
        elif tokens > marks.soft and self._may_prepare(conversation):
            conversation.summary_task = self._compaction.scope.start(
                self._prepare, conversation, name="summary beside a turn"
            )

    async def apply_remedy(self, conversation: Conversation, remedy: Remedy) -> bool:
        if remedy == "thoughts":
            return await self._drop_reasoning(conversation)
        if remedy == "documents":
            return await self._hide_media(conversation, documents=True)
        if remedy == "size" and await self._hide_media(conversation):
            return True
        if self._is_callers:
            return False
        before, fixed = conversation.tokens, conversation.prefix_tokens
        log.info("a model accepts less than estimated", model=conversation.model.name, tokens=before)
        try:
            await self._shrink(conversation, fixed + int(REFUSED_SHARE * (before - fixed)))
        except ModelFailed:
            return False
        return conversation.tokens < before

    async def _drop_reasoning(self, conversation: Conversation) -> bool:
        """Continues without the reasoning of earlier answers. This decision is stored, so the provider refuses the
        reasoning only once, even across unloading and restarts."""
        if not conversation.carries:
            return False
        name, session = conversation.model.name, self._taken.session
        log.warning("a model refuses its earlier reasoning; the turn continues without it", model=name)
        self._turn.emit(Notice(text=WITHOUT_REASONING.format(model=name)))
        view = await self._compaction.view(self._taken)
        conversation.drop_carried(view.messages())
        if session.kind != "ephemeral":
            now = self._compaction.clock()
            await self._turn.write(settings.put, session.id, REASONING_ERA, conversation.era, "refused", now, None)
        return True

    @property
    def _is_callers(self) -> bool:
        """True if the request consists of exactly the messages in a one-shot call. Callers of one-shot calls store the
        conversation themselves, and shorten it when they get the error that the request is too long."""
        one_shot = self._taken.session.kind == "ephemeral" and self._taken.turn.within is None
        return one_shot and self._turn.steps == 0

    def _too_long(self, conversation: Conversation, tokens: int) -> ModelFailed:
        return ModelFailed(
            # Clients written for OpenAI's API recognise this failure by its first words.
            "Input tokens exceed the configured limit: this model's maximum context length is "
            f"{conversation.model.facts.window} tokens, and the messages have about {tokens}. Shorten them, or name a "
            "session, whose history is stored for you.",
            kind="context",
            retryable=False,
        )

    # -- beside the turn --

    def _may_prepare(self, conversation: Conversation) -> bool:
        """True if a summary may be prepared. None is prepared for one-shot calls, which would end before it is
        needed."""
        kept = self._taken.session.kind != "ephemeral"
        return kept and conversation.summary_task is None and not self._suspended_reason(conversation)

    def _suspended_reason(self, conversation: Conversation) -> str:
        """Returns the reason why no model may be asked for a summary now, or an empty string if one may be asked."""
        until, why = conversation.cooldown or self._cools or (0.0, "")
        return why if self._compaction.clock() < until else ""

    async def _prepare(self, conversation: Conversation) -> None:
        """Writes summaries in advance, to be used when the hard mark is exceeded."""
        try:
            async with self._compaction.summary_slots:
                work = await self._work(conversation, self._compaction.marks(conversation.model).hard)
                there = await self._compaction.store.read(summaries.prepared, self._taken.session.id)
                if work.could_save and not there:
                    await self._write(conversation, work, SideCall(self._taken.session.id))
        except NoSummary as useless:
            await self._cool(conversation, str(useless))
        except Superseded:
            return
        except TidegateError as error:
            log.warning("a summary could not be prepared", session=self._taken.session.id, error=error.message)

    async def _work(self, conversation: Conversation, most: int) -> RequestSize:
        view = await self._compaction.view(self._taken)
        marks = marks_for(self._compaction.marks(conversation.model), conversation, most)
        return RequestSize(conversation, view, self._compaction.settings.least, most, marks)

    async def _cool(self, conversation: Conversation, why: str) -> None:
        """Stops asking models for summaries for a while, across turns and restarts."""
        self._compaction.counts["useless"] += 1
        log.warning("a summary could not be used", session=self._taken.session.id, why=why)
        now = self._compaction.clock()
        until = now + self._compaction.settings.cooldown
        conversation.cooldown = (until, why)
        if until > now and self._taken.session.kind != "ephemeral":
            await self._turn.write(
                settings.put, self._taken.session.id, SUMMARY_COOLDOWN, why, "compaction", now, until
            )

    # -- before the next step --

    async def _shrink(self, conversation: Conversation, most: int) -> None:
        """Summarises older messages and reduces the request to `most` tokens."""
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
        self._notify(view, work, why)
        if work.view.covered > view.covered and self._compaction.on_summarised is not None:
            await self._compaction.on_summarised(self._taken.session)

    async def _await_prepared(self, conversation: Conversation) -> None:
        """Waits for summaries that are already being written in the background, instead of writing them twice."""
        task, conversation.summary_task = conversation.summary_task, None
        if task is None:
            return
        with anyio.move_on_after(2 * self._compaction.settings.summary_seconds):
            await asyncio.wait({task})
        if not task.done():
            task.cancel()

    async def _summarise(self, conversation: Conversation, work: RequestSize) -> str:
        """Applies the prepared summaries, or writes them now. If there are no summaries, returns the reason; otherwise
        returns an empty string."""
        session, compaction = self._taken.session.id, self._compaction
        rows: list[SummaryRow] = await compaction.store.read(summaries.prepared, session)
        if not work.is_worth(rows):
            if why := self._suspended_reason(conversation):
                return why
            if not work.could_save:
                return "too few of its messages are old"
            side_call = SideCall(session, emit=self._turn.emit, usage=self._turn.usage)
            try:
                rows = await self._write(conversation, work, side_call)
            except NoSummary as useless:
                await self._cool(conversation, str(useless))
                return str(useless)
            finally:
                for _, used in side_call.calls:
                    self._turn.add_usage(used)
        if not work.is_worth(rows):
            await self._turn.write(summaries.drop_prepared, session)
            await self._cool(conversation, SAVES_TOO_LITTLE)
            return SAVES_TOO_LITTLE
        await self._turn.write(summaries.apply, session, [row.number for row in sorted(rows, key=_by_level)])
        work.view = await compaction.view(self._taken)
        compaction.counts["summary"] += 1
        return ""

    async def _write(self, conversation: Conversation, work: RequestSize, side_call: SideCall) -> list[SummaryRow]:
        model = conversation.model
        return await self._compaction.summarizer.write(side_call, self._taken, work.view, model, work.marks, work.rate)

    async def _take(self, work: RequestSize, stage: ReductionStage) -> None:
        """Applies a stage if it reduces the request by the configured share or, as a last resort, if it makes the
        request fit."""
        enough = stage.last_resort and work.smaller(stage.view) and work.would_fit(stage.view)
        if not enough and not work.saves(stage.view):
            return
        await self._turn.write(write_stage, self._taken.session.id, stage, self._compaction.clock())
        work.view = await self._compaction.view(self._taken)
        self._compaction.counts["excerpts" if stage.cut is None else "cut"] += 1

    async def _hide_media(self, conversation: Conversation, *, documents: bool = False) -> bool:
        """Replaces media with descriptions: on the first call, all except those in the last message that has any; on
        the second call, those as well. If `documents` is true, only messages with documents count, but other media
        before the last of them are also replaced. Returns False if nothing is left to replace."""
        view = await self._compaction.view(self._taken)
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
        await self._turn.write(summaries.elide, self._taken.session.id, elision, self._compaction.clock())
        view = await self._compaction.view(self._taken)
        conversation.rebuild(view.messages(), view.mark)
        self._compaction.counts["media"] += 1
        which = f"{'older' if len(shown) > 1 else 'the'} images, sounds and documents are"
        why = (
            "The model's endpoint refused a document"
            if documents
            else "The request was too large for the model's endpoint"
        )
        self._turn.emit(Notice(text=f"{why}: {which} described in words."))
        return True

    def _notify(self, before: View, work: RequestSize, why: str) -> None:
        view = work.view
        if view is before:
            if why:
                self._turn.emit(Notice(text=f"This conversation was not summarised: {why}."))
            return
        sentences = []
        if why:
            sentences.append(f"Older messages could not be summarised ({why.rstrip('.')}).")
        if view.covered > before.covered:
            how = "a list of them" if view.summaries[-1].how == "cut" else "a summary"
            sentences.append(f"The model sees {how} instead of messages {before.covered + 1} to {view.covered}.")
        elif len(view.summaries) < len(before.summaries):
            sentences.append("Older summaries were merged into one.")
        if view.elisions != before.elisions:
            sentences.append("The model sees excerpts of long messages.")
        sentences.append("Nothing is deleted, but the provider bills the conversation in full once.")
        self._turn.emit(Notice(text=" ".join(sentences)))

    def _too_small(self, conversation: Conversation) -> ModelFailed:
        marks, fixed = self._compaction.marks(conversation.model), conversation.prefix_tokens
        return ModelFailed(
            f"Model {conversation.model.name!r}: its window of {marks.window:,} tokens, of which a request may have "
            f"{marks.hard:,}, is too small for this agent, whose prompt and tools take about {fixed:,} (see "
            "/context); give it a model with a larger window, a shorter prompt or fewer tools.",
            kind="context",
            retryable=False,
        )


def read_view(db: Db, session: str, before_turn: str | None) -> View:
    """Returns the model's view of a session, without the rows of turn `before_turn`."""
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
