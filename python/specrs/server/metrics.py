"""Counts and times of the server, in the words of vLLM's metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

import specrs

from ..decoding.stats import Stats
from ..serving.sequence import Sequence
from ..serving.step import Event

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """What /metrics tells; no text of a user is in it.

    Attributes:
        last_step: When the batch ended its last step, in seconds of the monotonic clock.
        last_arrival: When a request came to it last.
    """

    def __init__(self) -> None:
        self.last_step = self.last_arrival = time.monotonic()
        self._batch: specrs.Batch | None = None
        self._rows = 0
        self._last: dict[Sequence, float] = {}  # when it made its last token
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self.rejections = self._counter("admission_rejections", "Requests refused: queue full.")
        self._success = self._counter(
            "request_success", "Requests that came to their end.", ["finished_reason"]
        )
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts verified.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Tokens drafted.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Of them accepted.")
        self._iteration = Histogram(
            "specrs:iteration_tokens_total",
            "Rows of a pass.",
            buckets=ROWS,
            registry=self._registry,
        )
        self._first = self._seconds(
            "time_to_first_token", "From entering the batch to the first token."
        )
        self._between = self._seconds("inter_token_latency", "Between tokens of a request.")
        self._whole = self._seconds("e2e_request_latency", "From arrival to the end.")
        self._queued = self._seconds("request_queue_time", "Before the prompt was begun.")
        self._prefill = self._seconds("request_prefill_time", "Evaluating the prompt.")
        self._decode = self._seconds("request_decode_time", "Making all further tokens.")

    def _counter(self, name: str, about: str, labels: Collection[str] = ()) -> Counter:
        return Counter(f"specrs:{name}", about, labels, registry=self._registry)

    def _seconds(self, name: str, about: str) -> Histogram:
        return Histogram(f"specrs:{name}_seconds", about, buckets=SECONDS, registry=self._registry)

    def watch(self, batch: specrs.Batch, passes: Callable[[], tuple[int, int]]) -> None:
        """Tell of a batch from now on, and of the `passes` of its model."""
        self._batch, self._passes = batch, passes

    def step(self, events: Collection[Event]) -> None:
        """Take note of a step; called in the thread of the batch."""
        now = self.last_step = time.monotonic()
        assert self._batch is not None
        rows = self._batch.stats.rows
        if rows > self._rows:
            self._iteration.observe(rows - self._rows)
            self._rows = rows
        drafts = drafted = accepted = 0
        for event in events:
            made = 0
            for step in event.steps:
                made += len(step.tokens)
                drafts += step.drafted > 0
                drafted += step.drafted
                accepted += step.accepted
            if made:
                before = self._last.get(event.sequence)
                if before is not None:
                    for _ in range(made):
                        self._between.observe((now - before) / made)
                self._last[event.sequence] = now
            if event.ended:
                self._last.pop(event.sequence, None)
        if drafts:
            self._drafts.inc(drafts)
            self._drafted.inc(drafted)
            self._accepted.inc(accepted)

    def ended(self, reason: str, stats: Stats, seconds: float, first: float | None) -> None:
        """Take note of a choice that is over.

        Args:
            reason: Its finish_reason.
            stats: What it cost.
            seconds: From arrival to the end.
            first: From entering the batch to the first token; None if there was none.
        """
        self._success.labels(reason).inc()
        self._whole.observe(seconds)
        self._queued.observe(stats.queued_seconds)
        if first is not None:
            self._first.observe(first)
            self._prefill.observe(stats.prefill_seconds)
            self._decode.observe(stats.decode_seconds)

    def collect(self) -> Iterator[Metric]:
        """Give what the batch counts itself."""
        if self._batch is None:
            return
        stats = self._batch.stats
        for name, about, value in (
            ("num_requests_running", "Requests that run.", stats.running),
            ("num_requests_waiting", "Requests that wait.", stats.waiting),
            (
                "kv_cache_usage_perc",
                "Part of the memory for caches in use, kept prefixes included.",
                stats.cache_bytes / self._batch.cache_bytes,
            ),
        ):
            yield GaugeMetricFamily(f"specrs:{name}", about, value=value)
        passes, alone = self._passes()
        for name, about, count in (
            ("prompt_tokens", "Tokens of prompts.", stats.prompt_tokens),
            ("generation_tokens", "Tokens made.", stats.tokens_generated),
            ("prefix_cache_queries", "Tokens of prompts looked up.", stats.prompt_tokens),
            ("prefix_cache_hits", "Of them found.", stats.cached_tokens),
            ("passes", "Passes over the weights.", passes),
            ("passes_on_fewer_threads", "Of them short of workers.", alone),
        ):
            yield CounterMetricFamily(f"specrs:{name}", about, value=count)

    def text(self) -> bytes:
        """Return everything in Prometheus' format."""
        return generate_latest(self._registry)
