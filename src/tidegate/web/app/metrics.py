"""Metrics for Prometheus.

A request only increments a few integers. All other values are read from the packages when the metrics are scraped.
Labels are taken from closed sets (routes, statuses, states, reasons, settings, configured models and budgets), so the
number of series is bounded. There is no global registry. The Prometheus library is imported at the first scrape; a
gateway that is never scraped does not load it.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from tidegate import __version__
from tidegate.config import LimitSettings
from tidegate.lifetimes import CacheStats, Ledger
from tidegate.status_report import McpStatus, ModelStatus, SessionsStatus
from tidegate.store import StoreStats
from tidegate.web.app.http_response import HttpResponse

if TYPE_CHECKING:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

    from tidegate.web.app.app import HttpCounters


class Metrics:
    """The collector for all metrics. Creating one imports the Prometheus library."""

    def __init__(
        self,
        *,
        counters: "HttpCounters",
        service: Callable[[], SessionsStatus],
        store: Callable[[], StoreStats],
        caches: Callable[[], Iterable[CacheStats]],
        gauges: Callable[[], dict[str, float]],
        limits: LimitSettings,
        ledger: Ledger,
    ) -> None:
        from prometheus_client import CollectorRegistry
        from prometheus_client.registry import Collector

        class PrometheusCollector(Collector):
            collect = staticmethod(self.read)

            def describe(self) -> "Iterator[Metric]":
                """Describes nothing. Otherwise, Prometheus would collect the metrics to describe them, before the
                packages are open."""
                return iter(())

        self._counters = counters
        self._service = service
        self._store = store
        self._caches = caches
        self._gauges = gauges
        self._limits = limits
        self._ledger = ledger
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(PrometheusCollector())

    def response(self) -> HttpResponse:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        body = generate_latest(self._registry)
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode()), (b"content-length", str(len(body)).encode())]
        return HttpResponse(200, headers, body)

    def read(self) -> "Iterator[Metric]":
        from prometheus_client.core import InfoMetricFamily

        yield InfoMetricFamily("tidegate", "The program.", value={"version": __version__})
        yield from self._http_metrics()
        yield from self._session_metrics(self._service())
        yield from self._store_metrics(self._store())
        yield from self._cache_metrics()
        yield from self._limit_metrics()
        yield from self._held_metrics()
        for name, value in self._gauges().items():
            yield _gauge(f"tidegate_{name}", name.replace("_", " ").capitalize() + ".", value=value)

    def _http_metrics(self) -> "Iterator[Metric]":
        requests = _counter("tidegate_http_requests", "Requests, by route and status.", labels=("route", "status"))
        for (route, status), count in sorted(self._counters.requests.items()):
            requests.add_metric((route, str(status)), count)
        yield requests
        from prometheus_client.core import HistogramMetricFamily

        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, self._counters.BOUNDS), "+Inf"), self._counters.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(
            "tidegate_chat_seconds",
            "From a chat request to the end of its answer.",
            buckets=buckets,
            sum_value=self._counters.seconds,
        )

    def _session_metrics(self, status: SessionsStatus) -> "Iterator[Metric]":
        from prometheus_client.core import SummaryMetricFamily

        turns, sessions = status.turns, status.sessions
        now = _gauge("tidegate_turns", "Turns in this process now, by state.", labels=("state",))
        for state in ("running", "waiting", "asking", "delegating"):
            now.add_metric((state,), getattr(turns, state))
        yield now
        ended = _counter("tidegate_turns_ended", "Turns that ended here, by state.", labels=("state",))
        states = ("answered", "failed", "stopped")
        for state in states:
            ended.add_metric((state,), getattr(turns, state))
        yield ended
        yield SummaryMetricFamily(
            "tidegate_turn_seconds",
            "Time that turns ran.",
            count_value=sum(getattr(turns, state) for state in states),
            sum_value=turns.seconds,
        )
        for name, text in (
            ("present", "Sessions that are at least partly in memory."),
            ("residents", "Conversations kept ready in memory."),
            ("resident_bytes", "Bytes held by those conversations."),
        ):
            yield _gauge(f"tidegate_sessions_{name}", text, value=getattr(sessions, name))
        yield _counter(
            "tidegate_residents_over_cap_mid_turn",
            "Number of times a resident over the cap was kept because its turn was running.",
            value=sessions.over_cap_mid_turn,
        )
        unloads = _counter("tidegate_unloads", "Residents unloaded, by reason.", labels=("reason",))
        for reason, count in sorted(sessions.unloads.items()):
            unloads.add_metric((reason,), count)
        yield unloads
        yield _gauge(
            "tidegate_questions_waiting",
            "Approvals and questions of running turns that are waiting for a user's answer.",
            value=status.questions.waiting,
        )
        yield _gauge("tidegate_audit_rows", "Rows of the audit log when it was last pruned.", value=status.audit.rows)
        if (found := status.search.vectors) is not None:
            yield _gauge("tidegate_vectors_bytes", "Bytes of the vectors of messages.", value=found.bytes)
            yield _gauge("tidegate_vectors_limit_bytes", "The limit of these bytes.", value=found.limit)
            text = "Conversations with messages that wait for a vector."
            yield _gauge("tidegate_vectors_waiting", text, value=found.waiting)
        smaller = _counter(
            "tidegate_compactions", "Number of times a request was reduced to fit its model's window.", labels=("how",)
        )
        for how, count in sorted(status.context.items()):
            smaller.add_metric((how,), count)
        yield smaller
        yield from self._usage_metrics(status)
        yield from self._model_metrics(status.model_states)
        yield from self._mcp_metrics(status.mcp)

    def _usage_metrics(self, status: SessionsStatus) -> "Iterator[Metric]":
        """Yields the metrics by configured model, and by budget for the whole gateway."""
        tokens = _counter(
            "tidegate_tokens",
            "Tokens used by models, by kind; cached and written ones are part of the input.",
            labels=("model", "kind"),
        )
        cost = _counter("tidegate_cost_dollars", "The cost of those tokens.", labels=("model",))
        calls = _counter("tidegate_model_calls", "Model calls that were charged.", labels=("model",))
        for model, used in sorted(status.models.items()):
            for kind in ("input", "cached", "written", "output"):
                tokens.add_metric((model, kind), getattr(used, kind))
            cost.add_metric((model,), used.cost)
            calls.add_metric((model,), used.calls)
        yield from (tokens, cost, calls)
        ratio = _gauge(
            "tidegate_budget_used_ratio",
            "The used share of a budget for the whole gateway, in its current window.",
            labels=("budget",),
        )
        for budget in status.budgets:
            ratio.add_metric((budget.setting,), budget.used)
        yield ratio
        yield _gauge("tidegate_day_tokens", "Tokens used by models today (UTC).", value=status.budgets[0].tokens)

    def _model_metrics(self, states: dict[str, ModelStatus]) -> "Iterator[Metric]":
        """Yields the metrics by configured model and kind of failure."""
        failures = _counter(
            "tidegate_model_failures",
            "Failed requests to models, including those that were retried, by kind.",
            labels=("model", "kind"),
        )
        fallbacks = _counter(
            "tidegate_model_fallbacks", "Number of times a conversation fell back to this model.", labels=("model",)
        )
        keys = _gauge("tidegate_model_keys", "Keys of a model, by state.", labels=("model", "state"))
        resting = _gauge("tidegate_model_resting", "1 while a model is not used after a failure.", labels=("model",))
        for model, state in sorted(states.items()):
            for kind, count in sorted(state.failures.items()):
                failures.add_metric((model, kind), count)
            fallbacks.add_metric((model,), state.fallbacks)
            keys.add_metric((model, "ready"), state.keys - state.keys_resting)
            keys.add_metric((model, "resting"), state.keys_resting)
            resting.add_metric((model,), float(state.rests_until is not None))
        yield from (failures, fallbacks, keys, resting)

    def _mcp_metrics(self, servers: list[McpStatus]) -> "Iterator[Metric]":
        ready = _gauge("tidegate_mcp_ready", "Running MCP servers that are ready.", labels=("server",))
        failed = _gauge("tidegate_mcp_failed", "1 if an MCP server has failed.", labels=("server",))
        memory = _gauge("tidegate_mcp_memory_bytes", "Memory of the processes of an MCP server.", labels=("server",))
        restarts = _counter("tidegate_mcp_restarts", "Restarts of MCP servers.", labels=("server",))
        calls = _counter("tidegate_mcp_calls", "Requests to MCP servers.", labels=("server",))
        for server in servers:
            ready.add_metric((server.name,), server.running)
            failed.add_metric((server.name,), server.state == "failed")
            memory.add_metric((server.name,), server.memory)
            restarts.add_metric((server.name,), server.restarts)
            calls.add_metric((server.name,), server.calls)
        yield from (ready, failed, memory, restarts, calls) if servers else ()

    def _store_metrics(self, stats: StoreStats) -> "Iterator[Metric]":
        for name in ("bytes", "wal_bytes", "writes_waiting", "reads_waiting", "connections"):
            text = f"The store: {name.replace('_', ' ')}."
            yield _gauge(f"tidegate_store_{name}", text, value=getattr(stats, name))
        yield _gauge("tidegate_store_full", "1 while the disk is full.", value=float(stats.full))
        open_kinds = {problem.kind for problem in stats.problems}
        stands = _gauge("tidegate_store_problem", "1 while a problem is open, by kind.", labels=("kind",))
        met = _counter("tidegate_store_problems", "Number of times a problem occurred, by kind.", labels=("kind",))
        for kind, count in stats.problem_counts.items():
            stands.add_metric((kind,), float(kind in open_kinds))
            met.add_metric((kind,), count)
        yield from (stands, met)
        if stats.checked is not None:
            text = "When the last full check of the database ended."
            yield _gauge("tidegate_store_checked_timestamp_seconds", text, value=stats.checked)
        for name in (
            "writes",
            "groups",
            "writes_failed",
            "writes_refused",
            "reads",
            "reads_refused",
            "reads_repeated",
            "checkpoints",
        ):
            text = f"The store: {name.replace('_', ' ')}."
            yield _counter(f"tidegate_store_{name}", text, value=getattr(stats, name))

    def _cache_metrics(self) -> "Iterator[Metric]":
        entries = _gauge("tidegate_cache_entries", "Entries of a cache.", labels=("cache",))
        cap = _gauge("tidegate_cache_cap", "Entries that a cache may hold.", labels=("cache",))
        size = _gauge("tidegate_cache_bytes", "Bytes of a cache that measures its entries.", labels=("cache",))
        hits = _counter("tidegate_cache_hits", "Lookups that found an entry.", labels=("cache",))
        misses = _counter("tidegate_cache_misses", "Lookups that found no entry.", labels=("cache",))
        evictions = _counter("tidegate_cache_evictions", "Entries evicted by cap, bytes or age.", labels=("cache",))
        for stats in self._caches():
            label = (stats.name,)
            entries.add_metric(label, stats.size)
            cap.add_metric(label, stats.cap)
            size.add_metric(label, stats.bytes)
            hits.add_metric(label, stats.hits)
            misses.add_metric(label, stats.misses)
            evictions.add_metric(label, stats.evictions)
        yield from (entries, cap, size, hits, misses, evictions)

    def _limit_metrics(self) -> "Iterator[Metric]":
        limits = _gauge("tidegate_limit", "The settings of [limits], by name.", labels=("name",))
        for name, value in msgspec.structs.asdict(self._limits).items():
            if value is not None:  # the gateway chooses these values itself and reports them among its gauges
                limits.add_metric((name,), value)
        yield limits

    def _held_metrics(self) -> "Iterator[Metric]":
        count = _gauge("tidegate_held", "Resources held, by kind.", labels=("kind",))
        size = _gauge("tidegate_held_bytes", "Bytes held, by kind.", labels=("kind",))
        fds = _gauge("tidegate_held_descriptors", "File descriptors held, by kind.", labels=("kind",))
        children = _gauge("tidegate_held_children", "Child processes held, by kind.", labels=("kind",))
        for kind, holding in self._ledger.totals().items():
            count.add_metric((kind,), holding.count)
            size.add_metric((kind,), holding.bytes)
            fds.add_metric((kind,), holding.fds)
            children.add_metric((kind,), holding.children)
        yield from (count, size, fds, children)


def _counter(
    name: str, text: str, *, labels: tuple[str, ...] | None = None, value: float | None = None
) -> "CounterMetricFamily":
    from prometheus_client.core import CounterMetricFamily

    return CounterMetricFamily(name, text, labels=labels, value=value)


def _gauge(
    name: str, text: str, *, labels: tuple[str, ...] | None = None, value: float | None = None
) -> "GaugeMetricFamily":
    from prometheus_client.core import GaugeMetricFamily

    return GaugeMetricFamily(name, text, labels=labels, value=value)
