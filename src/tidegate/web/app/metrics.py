"""Metrics for Prometheus, read from the rooms when they are scraped.

Guarantee: a turn pays for its metrics with a few additions to integers; labels come from closed sets (our routes,
statuses, states, reasons, settings, the configured models and budgets), so that the number of series has a ceiling;
nothing here is global. This module is loaded at the first scrape: a gateway that nobody scrapes does not carry the
library.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from tidegate import __version__
from tidegate.config import LimitSettings
from tidegate.lifetimes import CacheStats, Ledger
from tidegate.status_report import ModelStatus, SessionsStatus
from tidegate.store import StoreStats
from tidegate.web.app.error_responses import HttpResponse
from tidegate.web.app.traffic import SECONDS, HttpCounters


class Metrics:
    def __init__(
        self,
        *,
        traffic: HttpCounters,
        service: Callable[[], SessionsStatus],
        store: Callable[[], StoreStats],
        caches: Callable[[], Iterable[CacheStats]],
        gauges: Callable[[], dict[str, float]],
        limits: LimitSettings,
        ledger: Ledger,
    ) -> None:
        self._traffic = traffic
        self._service = service
        self._store = store
        self._caches = caches
        self._gauges = gauges
        self._limits = limits
        self._ledger = ledger
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Reading(self))

    def answer(self) -> HttpResponse:
        body = generate_latest(self._registry)
        headers = [(b"content-type", CONTENT_TYPE_LATEST.encode()), (b"content-length", str(len(body)).encode())]
        return HttpResponse(200, headers, body)

    def read(self) -> Iterator[Metric]:
        yield InfoMetricFamily("tidegate", "The program.", value={"version": __version__})
        yield from self._traffic_metrics()
        yield from self._door_metrics(self._service())
        yield from self._store_metrics(self._store())
        yield from self._cache_metrics()
        yield from self._limit_metrics()
        yield from self._held_metrics()
        for name, value in self._gauges().items():
            yield GaugeMetricFamily(f"tidegate_{name}", name.replace("_", " ").capitalize() + ".", value=value)

    def _traffic_metrics(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "tidegate_http_requests", "Requests, by route and status.", labels=("route", "status")
        )
        for (route, status), count in sorted(self._traffic.requests.items()):
            requests.add_metric((route, str(status)), count)
        yield requests
        total = 0
        buckets: list[tuple[str, float]] = []
        for bound, count in zip((*map(str, SECONDS), "+Inf"), self._traffic.buckets, strict=True):
            total += count
            buckets.append((bound, total))
        yield HistogramMetricFamily(
            "tidegate_chat_seconds",
            "From a chat request to the end of its answer.",
            buckets=buckets,
            sum_value=self._traffic.seconds,
        )

    def _door_metrics(self, status: SessionsStatus) -> Iterator[Metric]:
        turns, sessions = status.turns, status.sessions
        now = GaugeMetricFamily("tidegate_turns", "Turns in this process now, by state.", labels=("state",))
        for state in ("running", "waiting", "asking", "delegating"):
            now.add_metric((state,), getattr(turns, state))
        yield now
        ended = CounterMetricFamily("tidegate_turns_ended", "Turns that ended here, by state.", labels=("state",))
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
            ("present", "Sessions of which something is in memory."),
            ("residents", "Conversations kept ready in memory."),
            ("resident_bytes", "Bytes that those hold."),
        ):
            yield GaugeMetricFamily(f"tidegate_sessions_{name}", text, value=getattr(sessions, name))
        yield CounterMetricFamily(
            "tidegate_residents_over_cap_mid_turn",
            "Times that a resident over the cap was kept because it was in mid-turn.",
            value=sessions.over_cap_mid_turn,
        )
        unloads = CounterMetricFamily("tidegate_unloads", "Residents unloaded, by reason.", labels=("reason",))
        for reason, count in sorted(sessions.unloads.items()):
            unloads.add_metric((reason,), count)
        yield unloads
        yield GaugeMetricFamily(
            "tidegate_questions_waiting",
            "Approvals and questions of running turns that wait for a person's answer.",
            value=status.questions.waiting,
        )
        yield GaugeMetricFamily(
            "tidegate_audit_rows", "Rows of the audit log when it was last pruned.", value=status.audit.rows
        )
        smaller = CounterMetricFamily(
            "tidegate_compactions", "Times that a request was made smaller to fit its model's window.", labels=("how",)
        )
        for how, count in sorted(status.context.items()):
            smaller.add_metric((how,), count)
        yield smaller
        yield from self._usage_metrics(status)
        yield from self._model_metrics(status.model_states)

    def _usage_metrics(self, status: SessionsStatus) -> Iterator[Metric]:
        """Models are those of the configuration, budgets those of the whole gateway."""
        tokens = CounterMetricFamily(
            "tidegate_tokens",
            "Tokens that models have used, by kind; cached and written ones are a part of the input.",
            labels=("model", "kind"),
        )
        cost = CounterMetricFamily("tidegate_cost_dollars", "What that has cost.", labels=("model",))
        calls = CounterMetricFamily("tidegate_model_calls", "Model calls that were paid for.", labels=("model",))
        for model, used in sorted(status.models.items()):
            for kind in ("input", "cached", "written", "output"):
                tokens.add_metric((model, kind), getattr(used, kind))
            cost.add_metric((model,), used.cost)
            calls.add_metric((model,), used.calls)
        yield from (tokens, cost, calls)
        ratio = GaugeMetricFamily(
            "tidegate_budget_used_ratio",
            "Share that is spent of a budget of the whole gateway, in its current window.",
            labels=("budget",),
        )
        for budget in status.budgets:
            ratio.add_metric((budget.setting,), budget.used)
        yield ratio
        yield GaugeMetricFamily(
            "tidegate_day_tokens", "Tokens that models have used today (UTC).", value=status.budgets[0].tokens
        )

    def _model_metrics(self, states: dict[str, ModelStatus]) -> Iterator[Metric]:
        """By the names of the configuration and our own kinds of failure."""
        failures = CounterMetricFamily(
            "tidegate_model_failures",
            "Requests to models that failed, also those that were tried again, by kind.",
            labels=("model", "kind"),
        )
        fallbacks = CounterMetricFamily(
            "tidegate_model_fallbacks", "Times that a conversation fell back to this model.", labels=("model",)
        )
        keys = GaugeMetricFamily("tidegate_model_keys", "Keys of a model, by state.", labels=("model", "state"))
        resting = GaugeMetricFamily(
            "tidegate_model_resting", "1 while a model is left alone after a failure.", labels=("model",)
        )
        for model, state in sorted(states.items()):
            for kind, count in sorted(state.failures.items()):
                failures.add_metric((model, kind), count)
            fallbacks.add_metric((model,), state.fallbacks)
            keys.add_metric((model, "ready"), state.keys - state.keys_resting)
            keys.add_metric((model, "resting"), state.keys_resting)
            resting.add_metric((model,), float(state.rests_until is not None))
        yield from (failures, fallbacks, keys, resting)

    def _store_metrics(self, stats: StoreStats) -> Iterator[Metric]:
        for name in ("bytes", "wal_bytes", "writes_waiting", "reads_waiting", "connections"):
            text = f"The store: {name.replace('_', ' ')}."
            yield GaugeMetricFamily(f"tidegate_store_{name}", text, value=getattr(stats, name))
        yield GaugeMetricFamily("tidegate_store_full", "1 while the disk takes no more.", value=float(stats.full))
        standing = {problem.kind for problem in stats.problems}
        stands = GaugeMetricFamily("tidegate_store_problem", "1 while a problem stands, by kind.", labels=("kind",))
        met = CounterMetricFamily("tidegate_store_problems", "Times that a problem was met, by kind.", labels=("kind",))
        for kind, count in stats.problem_counts.items():
            stands.add_metric((kind,), float(kind in standing))
            met.add_metric((kind,), count)
        yield from (stands, met)
        if stats.checked is not None:
            text = "When the last full check of the database ended."
            yield GaugeMetricFamily("tidegate_store_checked_timestamp_seconds", text, value=stats.checked)
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
            yield CounterMetricFamily(f"tidegate_store_{name}", text, value=getattr(stats, name))

    def _cache_metrics(self) -> Iterator[Metric]:
        entries = GaugeMetricFamily("tidegate_cache_entries", "Entries of a cache.", labels=("cache",))
        cap = GaugeMetricFamily("tidegate_cache_cap", "Entries that a cache may hold.", labels=("cache",))
        size = GaugeMetricFamily("tidegate_cache_bytes", "Bytes of a cache that weighs its entries.", labels=("cache",))
        hits = CounterMetricFamily("tidegate_cache_hits", "Lookups that found something.", labels=("cache",))
        misses = CounterMetricFamily("tidegate_cache_misses", "Lookups that found nothing.", labels=("cache",))
        evictions = CounterMetricFamily(
            "tidegate_cache_evictions", "Entries put out by cap, bytes or age.", labels=("cache",)
        )
        for stats in self._caches():
            label = (stats.name,)
            entries.add_metric(label, stats.size)
            cap.add_metric(label, stats.cap)
            size.add_metric(label, stats.bytes)
            hits.add_metric(label, stats.hits)
            misses.add_metric(label, stats.misses)
            evictions.add_metric(label, stats.evictions)
        yield from (entries, cap, size, hits, misses, evictions)

    def _limit_metrics(self) -> Iterator[Metric]:
        limits = GaugeMetricFamily("tidegate_limit", "The settings of [limits], by name.", labels=("name",))
        for name, value in msgspec.structs.asdict(self._limits).items():
            if value is not None:  # chosen by the gateway itself, which tells it among its gauges
                limits.add_metric((name,), value)
        yield limits

    def _held_metrics(self) -> Iterator[Metric]:
        count = GaugeMetricFamily("tidegate_held", "Things held, by kind.", labels=("kind",))
        size = GaugeMetricFamily("tidegate_held_bytes", "Bytes held, by kind.", labels=("kind",))
        fds = GaugeMetricFamily("tidegate_held_descriptors", "File descriptors held, by kind.", labels=("kind",))
        children = GaugeMetricFamily("tidegate_held_children", "Child processes held, by kind.", labels=("kind",))
        for kind, holding in self._ledger.totals().items():
            count.add_metric((kind,), holding.count)
            size.add_metric((kind,), holding.bytes)
            fds.add_metric((kind,), holding.fds)
            children.add_metric((kind,), holding.children)
        yield from (count, size, fds, children)


class _Reading(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.read()

    def describe(self) -> Iterator[Metric]:
        """Nothing: describing by collecting would ask the rooms before they are open."""
        return iter(())
