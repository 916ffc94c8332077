"""How long things take: the references' equations, a planner, and a simulation of batches.

Seconds, bytes and bits per second throughout.
"""

from lynxq.latency.equations import (
    expected_accepted,
    hides_residual,
    kv_bytes,
    residual_exposure,
    token_rate,
    tokens_to_hide,
    transfer_seconds,
    ttft_gain,
    ttft_monolithic,
    ttft_split,
)
from lynxq.latency.link import Interval
from lynxq.latency.planner import Candidate, Plan, plan
from lynxq.latency.shapes import ModelShape, StreamSizes, stream_sizes
from lynxq.latency.simulation import Simulation, Trace, simulate
from lynxq.latency.timeline import Timeline, VerificationCost
from lynxq.latency.workload import Engine, Request, batch

__all__ = [
    "Candidate",
    "Engine",
    "Interval",
    "ModelShape",
    "Plan",
    "Request",
    "Simulation",
    "StreamSizes",
    "Timeline",
    "Trace",
    "VerificationCost",
    "batch",
    "expected_accepted",
    "hides_residual",
    "kv_bytes",
    "plan",
    "residual_exposure",
    "simulate",
    "stream_sizes",
    "token_rate",
    "tokens_to_hide",
    "transfer_seconds",
    "ttft_gain",
    "ttft_monolithic",
    "ttft_split",
]
