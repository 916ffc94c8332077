"""Lossless verification of tokens that were drafted from an approximate cache, and how many to draft.

Draft from the anchor while the residual is on its way, then verify with the full cache: what comes out is
distributed as the full cache alone would have it. The functions are pure, work on batches of unequal lengths, and
take numpy arrays or torch tensors; randomness is passed in.
"""

from lynxq.speculative.distributions import Distributions
from lynxq.speculative.draft import Draft, Drafting
from lynxq.speculative.health import HealthMonitor
from lynxq.speculative.lookup import Lookup
from lynxq.speculative.rule import acceptance_probability, corrected_distribution
from lynxq.speculative.verification import Verified, verify
from lynxq.speculative.window import AdaptiveWindow, LinkEstimate, Ratio, TokenEstimate, window

__all__ = [
    "AdaptiveWindow",
    "Distributions",
    "Draft",
    "Drafting",
    "HealthMonitor",
    "LinkEstimate",
    "Lookup",
    "Ratio",
    "TokenEstimate",
    "Verified",
    "acceptance_probability",
    "corrected_distribution",
    "verify",
    "window",
]
