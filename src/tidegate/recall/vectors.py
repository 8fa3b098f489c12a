"""The vectors of messages: made in the background by an embeddings model, and used in ranked searches.

A search never waits long for the model, and never fails because of it: if the model is slow, fails or returns an
invalid answer, the search uses only words and says why. After such a failure, the model is not called until its
cooldown ends. Each call is charged to the conversation whose texts it contains. Once a budget of that conversation is
spent, the call is refused and the conversation's messages wait. Texts, calls, disk space and memory are bounded.
Vectors are stored as one signed byte for each number.

Process lifetime. Between calls, only the vectors of the last queries are held.
"""

import math
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import mul

import anyio
from anyio import to_thread

from tidegate.agent import SideCall, SpendGuard, run_metered
from tidegate.errors import BudgetSpent, ModelFailed, ModelKind
from tidegate.lifetimes import BoundedCache, Holding, Ledger
from tidegate.log import Log
from tidegate.models import CountedModel, Models
from tidegate.models.embeddings import TEXTS, Embeddings
from tidegate.status_report import VectorsStatus
from tidegate.store import Db, QueryVector, SessionRow, Store, VectorBatch, sessions, usage, vector_batches, vectors
from tidegate.values import Usage

QUERY_SECONDS = 3.0
"""Time limit for the vector of a query. It is short because a person is waiting for the search."""
QUERY_BYTES = 2_000
"""Number of bytes of a query that are used for its vector."""
QUERIES = 64
"""Number of queries whose vectors are kept, since further pages of a search use the same one."""
BATCH_SECONDS = 15.0
"""Time limit for the vectors of one batch."""
CALLS = 20
"""Maximum number of calls in one run of the timer."""
RUN_SECONDS = 10.0
"""Time after which a run of the timer makes no further calls. The sum of this time and the time limit of the last call
is less than the time after which a timer counts as hung."""
TEXT_BYTES = 8_000
"""Maximum size of a message part that gets a vector: about two thousand tokens."""
LEAST_TEXT_BYTES = 250
"""Texts are not cut to less than this, however short the model's window is."""
WINDOW_SHARE = 0.75
"""The share of the model's window that a text may take, since its tokens are estimated."""
POSTPONED_SECONDS = 900.0
"""Time for which a conversation's messages wait if a budget does not allow a call. In the meantime, the limit may be
raised."""
PAUSE_SECONDS = 600.0
"""Time for which the model is not called in the background after it has refused every request or returned unusable
vectors."""
LEVELS = 127
"""The largest number of a stored vector."""

SpendGuardFor = Callable[[CountedModel, SessionRow, str], Awaitable[SpendGuard]]

log = Log(__name__)


class VectorsUnavailable(Exception):
    """A query has no vector. The exception's text gives the reason, phrased as the end of a sentence."""


class MessageVectors:
    def __init__(
        self,
        name: str,
        models: Models,
        store: Store,
        spend_guard: SpendGuardFor,
        clock: Callable[[], float],
        *,
        vector_bytes: int,
        ledger: Ledger,
        query_seconds: float = QUERY_SECONDS,
    ) -> None:
        self._query_seconds = query_seconds
        self._model = models.embeddings(name)
        self._cooldowns = models.cooldowns
        self._store = store
        self._spend_guard = spend_guard
        self._clock = clock
        self._limit = vector_bytes
        self._text_bytes = TEXT_BYTES
        self._paused_until = 0.0
        self._problem = ""
        self._queries: BoundedCache[tuple[str, str], bytes] = BoundedCache("query vectors", cap=QUERIES, weigh=len)
        ledger.view("query vectors", self._measure)

    def _measure(self) -> Iterator[tuple[str, Holding]]:
        yield "process", self._queries.stats().holding

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def identity(self) -> str:
        return self._model.identity

    async def status(self) -> VectorsStatus:
        found, waiting = await self._store.read(_state)
        return VectorsStatus(
            model=self.name,
            dimensions=found.dimensions,
            bytes=found.bytes,
            limit=self._limit,
            waiting=waiting,
            problem=self._problem,
        )

    # -- queries --

    async def query(self, text: str, session: str, turn: str) -> QueryVector:
        """Returns the vector of a query. Raises VectorsUnavailable."""
        text = text.encode("utf-8", "ignore")[:QUERY_BYTES].decode("utf-8", "ignore")
        known = self._queries.get((session, text))
        if known is not None:
            return QueryVector(known, self.identity)
        if self._cooldowns.of(self.name) is not None:
            raise VectorsUnavailable("failed a moment ago and is not asked again yet")
        of = await self._store.read(sessions.get, session)
        if of is None:
            raise VectorsUnavailable("is not asked for a deleted conversation")
        try:
            (vector,) = await self._embed(of, (text,), self._query_seconds, turn=turn)
        except BudgetSpent as error:
            raise VectorsUnavailable(f"was not asked: {error.message}") from None
        except ModelFailed as failure:
            raise VectorsUnavailable(f"failed ({failure.kind})") from None
        if not vector:
            raise VectorsUnavailable("has no vector for this query")
        dimensions = (await self._store.read(vectors.model)).dimensions
        if dimensions and dimensions != len(vector):
            raise VectorsUnavailable(f"answered with a vector of {len(vector)} numbers instead of {dimensions}")
        self._queries.put((session, text), vector)
        return QueryVector(vector, self.identity)

    # -- in the background --

    async def fill(self) -> None:
        """Creates the vectors of the next messages."""
        size = TEXTS
        end = time.monotonic() + RUN_SECONDS
        for _ in range(CALLS):
            if time.monotonic() > end:
                return
            if self._clock() < self._paused_until or self._cooldowns.of(self.name) is not None:
                return
            found, _ = await self._store.read(_state)
            if found.bytes >= self._limit:
                self._report(f"the vectors take {found.bytes} bytes, the limit context.vector_bytes")
                return
            batch = await self._store.read(vector_batches.next_batch, self._clock(), size, self._most_bytes())
            if batch is None:
                return
            try:
                await self._fill_batch(batch, found.number, found.dimensions)
                size = TEXTS
            except BudgetSpent as error:
                until = self._clock() + min(error.retry_after or POSTPONED_SECONDS, POSTPONED_SECONDS)
                await self._store.write(vector_batches.postpone, batch.block, until)
            except ModelFailed as failure:
                if failure.kind == "context" and self._text_bytes > LEAST_TEXT_BYTES:
                    self._text_bytes = max(LEAST_TEXT_BYTES, self._most_bytes() // 2)
                elif failure.kind not in _REFUSED:
                    self._report(failure.message)
                    return
                elif size > 1:
                    size = max(1, len(batch.texts) // 2)
                elif not await self._skip(batch, found.number, failure):
                    return

    async def _fill_batch(self, batch: VectorBatch, number: int, dimensions: int) -> None:
        texts = [text for _, text in batch.texts]
        made: list[bytes] = []
        if texts:
            made = await self._embed(batch.session, texts, BATCH_SECONDS)
            length = max(map(len, made))
            if dimensions and length not in (0, dimensions):
                self._paused_until = self._clock() + PAUSE_SECONDS
                self._report(
                    f"it answers with vectors of {length} numbers instead of {dimensions}; if another model is behind "
                    f"this name now, set dimensions = {length} in [models.{self.name}], and all vectors are made again"
                )
                return
            self._problem = ""
        found = {place: vector for (place, _), vector in zip(batch.texts, made, strict=True) if vector}
        await self._store.write(vector_batches.save, batch, number, found)

    async def _skip(self, batch: VectorBatch, number: int, failure: ModelFailed) -> bool:
        """Skips a message whose text the model refuses. If the model also refuses another text, the endpoint is at
        fault: nothing is skipped, and the model is not called for some time. Returns True if the message was
        skipped."""
        try:
            await self._embed(batch.session, ("test",), BATCH_SECONDS)
        except (ModelFailed, BudgetSpent):
            self._paused_until = self._clock() + PAUSE_SECONDS
            self._report(failure.message)
            return False
        log.warning(
            "a message gets no vector, since the model refuses its text",
            model=self.name,
            session=batch.session.id,
            message=batch.last,
            kind=failure.kind,
        )
        await self._store.write(vector_batches.save, batch, number, {})
        return True

    def _most_bytes(self) -> int:
        window = self._model.token_estimate.size(int(WINDOW_SHARE * self._model.facts.window))
        return max(LEAST_TEXT_BYTES, min(self._text_bytes, window))

    def _report(self, problem: str) -> None:
        """Reports a problem, once until it changes."""
        if problem != self._problem:
            log.warning("messages get no vectors", model=self.name, because=problem)
        self._problem = problem

    # -- calls --

    async def _embed(self, of: SessionRow, texts: Sequence[str], within: float, turn: str | None = None) -> list[bytes]:
        """Returns the vectors of a session's texts. The vector is empty for a text that has none. Raises BudgetSpent or
        ModelFailed."""
        guard = await self._spend_guard(self._model, of, "")
        side_call = SideCall(of.id)
        try:
            found = await run_metered(
                side_call,
                self.name,
                guard,
                lambda: self._model.embed(texts),
                _usage,
                lambda: self._model.estimate(texts),
                within=within,
            )
        except ModelFailed as failure:
            self._cooldowns.begin(self.name, failure)
            raise
        finally:
            if side_call.calls:
                with anyio.CancelScope(shield=True):
                    await self._store.write(usage.add_side_calls, of, tuple(side_call.calls), self._clock(), turn)
        self._cooldowns.end(self.name)
        return await to_thread.run_sync(_quantised, found.vectors)


_REFUSED: frozenset[ModelKind] = frozenset({"invalid", "content", "context"})
"""Kinds of failures that a text may have caused."""


def _usage(found: Embeddings) -> Usage:
    return found.usage


def _state(db: Db) -> tuple[vectors.VectorModel, int]:
    return vectors.model(db), vectors.count_due(db)


def _quantised(found: Sequence["array[float]"]) -> list[bytes]:
    return [quantised(vector) for vector in found]


def quantised(vector: "array[float]") -> bytes:
    """Returns the direction of a vector in signed bytes, or nothing if it has none. The largest number becomes 127."""
    largest = max(map(abs, vector))
    if not largest or not math.isfinite(LEVELS / largest):
        return b""
    factor = LEVELS / largest
    return array("b", map(round, map(mul, vector, [factor] * len(vector)))).tobytes()
