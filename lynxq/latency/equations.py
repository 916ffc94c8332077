"""The latency equations of the references (2, 3 and 16 to 20), with units.

Seconds, bytes and bits per second throughout; a gigabyte has 10^9 bytes, a GiB 2^30. Where the references contradict
themselves, the function says so and computes what is right; docs/latency.md has the list.
"""

from __future__ import annotations

import math

from lynxq.arguments import integer, real
from lynxq.errors import ParamsError

#: Relative slack before a quotient is rounded up, so that 0.12 s / 0.04 s is 3 tokens.
_SLACK = 1e-9


def kv_bytes(
    tokens: int, *, layers: int, kv_heads: int, head_dim: int, bits_per_element: float = 16, k_factor: float = 2
) -> float:
    """Size of a KV cache in bytes: K_factor · L · D · N_layers · Precision (equations 2 and 3).

    Parameters
    ----------
    tokens : int
        L, the context length.
    layers : int
        N_layers.
    kv_heads, head_dim : int
        D is their product. The references call the first "head count"; it is that of the KV heads, as their
        example has it, not that of the query heads.
    bits_per_element : float
        8 · Precision. Measured bits of a stream count its metadata as well.
    k_factor : float
        2 for keys and values; 1 for one latent vector, whose length is then ``kv_heads * head_dim``.

    Returns
    -------
    float
        Bytes.

    Examples
    --------
    The references' example, Qwen3-235B-A22B at 128K tokens. Their "23.5 GB" are GiB:

    >>> from lynxq.latency import kv_bytes
    >>> size = kv_bytes(131_072, layers=94, kv_heads=4, head_dim=128)
    >>> size / 2**30, round(size / 1e9, 2)
    (23.5, 25.23)
    """
    count = integer("tokens", tokens, 0, 1 << 48, ParamsError)
    for name, value in (("layers", layers), ("kv_heads", kv_heads), ("head_dim", head_dim)):
        count *= integer(name, value, 1, 1 << 31, ParamsError)
    return real("k_factor", k_factor, 0.0) * count * real("bits_per_element", bits_per_element, 0.0) / 8


def transfer_seconds(nbytes: float, bits_per_second: float) -> float:
    """How long bytes take on a link without other traffic and latency.

    Parameters
    ----------
    nbytes : float
        Bytes; note that links are rated in bits.
    bits_per_second : float
        25e9 for "25 Gbps".

    Returns
    -------
    float
        Seconds.

    Examples
    --------
    The references' 1.9 s and 7.5 s are those of 23.5 *decimal* gigabytes; the cache of equation 3 takes longer:

    >>> from lynxq.latency import transfer_seconds
    >>> [round(transfer_seconds(23.5e9, rate), 1) for rate in (100e9, 25e9)]
    [1.9, 7.5]
    >>> [round(transfer_seconds(23.5 * 2**30, rate), 1) for rate in (100e9, 25e9)]
    [2.0, 8.1]
    """
    return 8 * real("nbytes", nbytes, 0.0) / real("bits_per_second", bits_per_second, 0.0, exclusive=True)


def ttft_monolithic(compute: float, t_anc: float, t_res: float) -> float:
    """TTFT, in seconds, if both streams must be there before decoding starts (equation 16).

    Parameters
    ----------
    compute : float
        t_compute, seconds of prefill.
    t_anc, t_res : float
        Seconds of transfer of the anchor and of the residual stream.

    Examples
    --------
    >>> from lynxq.latency import ttft_monolithic
    >>> ttft_monolithic(0.5, 1.0, 1.0)
    2.5
    """
    return real("compute", compute, 0.0) + real("t_anc", t_anc, 0.0) + real("t_res", t_res, 0.0)


def residual_exposure(t_res: float, k: float, tpot: float) -> float:
    """max(0, t_res - k · TPOT): seconds for which the decoder waits for the residual (in equation 17).

    Parameters
    ----------
    t_res : float
        Seconds of transfer of the residual stream.
    k : float
        Tokens *drafted* meanwhile. The references define k as the accepted ones in one place and as the generated
        ones in another; it is generating that takes the time, whatever becomes of a token.
    tpot : float
        Seconds for one output token.
    """
    return max(0.0, real("t_res", t_res, 0.0) - real("k", k, 0.0) * real("tpot", tpot, 0.0))


def ttft_split(compute: float, t_anc: float, t_res: float, k: float, tpot: float) -> float:
    """TTFT of the split transfer, in seconds, as the references have it (equations 17 and 18).

    t_compute + t_anc + max(0, t_res - k · TPOT); the last term is 0 where drafting hides the residual. This is the
    time of no token: the first *drafted* token is there one TPOT after the anchor, however long the residual takes,
    and the first *final* one after the residual and a verification. See :class:`Timeline` for both.

    Parameters
    ----------
    compute, t_anc, t_res : float
        As :func:`ttft_monolithic` takes them.
    k, tpot : float
        As :func:`residual_exposure` takes them.

    Examples
    --------
    >>> from lynxq.latency import ttft_split
    >>> ttft_split(0.5, 1.0, 1.0, k=16, tpot=0.03125), ttft_split(0.5, 1.0, 1.0, k=64, tpot=0.03125)
    (2.0, 1.5)
    """
    return real("compute", compute, 0.0) + real("t_anc", t_anc, 0.0) + residual_exposure(t_res, k, tpot)


def hides_residual(t_res: float, k: float, tpot: float) -> bool:
    """Whether drafting hides the residual's transfer: k · TPOT ≥ t_res (equation 19).

    Parameters
    ----------
    t_res, k, tpot : float
        As :func:`residual_exposure` takes them.
    """
    return residual_exposure(t_res, k, tpot) == 0


def tokens_to_hide(t_res: float, tpot: float) -> int:
    """The least k that hides the residual: ⌈t_res / TPOT⌉ (equation 19).

    Parameters
    ----------
    t_res, tpot : float
        Seconds.

    Examples
    --------
    The references take t_res = Size_KV / (2 · bandwidth), with half of the 16-bit size, and get 94 tokens. Half of the
    16-bit size is *both* streams (4 + 4 of 16 bits); the residual alone is a quarter:

    >>> from lynxq.latency import tokens_to_hide, transfer_seconds
    >>> both, residual = 23.5e9 / 2, 23.5e9 / 4
    >>> round(transfer_seconds(both, 25e9), 2), tokens_to_hide(transfer_seconds(both, 25e9), 0.04)
    (3.76, 94)
    >>> round(transfer_seconds(residual, 25e9), 2), tokens_to_hide(transfer_seconds(residual, 25e9), 0.04)
    (1.88, 47)

    So their conclusion turns around: a window of 64 tokens is enough, also if the gigabytes are GiB.

    >>> tokens_to_hide(transfer_seconds(23.5 / 4 * 2**30, 25e9), 0.04)
    51
    """
    needed = real("t_res", t_res, 0.0) / real("tpot", tpot, 0.0, exclusive=True)
    if not math.isfinite(needed):
        raise ParamsError(f"t_res must be a number of tokens times tpot, got {t_res} s and {tpot} s")
    return math.ceil(needed * (1 - _SLACK))


def ttft_gain(t_res: float, k: float, tpot: float) -> float:
    """Seconds by which equation 17 is below equation 16: min(t_res, k · TPOT) (equation 20).

    Parameters
    ----------
    t_res, k, tpot : float
        As :func:`residual_exposure` takes them.

    Examples
    --------
    >>> from lynxq.latency import ttft_gain
    >>> ttft_gain(1.0, k=16, tpot=0.03125), ttft_gain(1.0, k=64, tpot=0.03125)
    (0.5, 1.0)
    """
    return min(real("t_res", t_res, 0.0), real("k", k, 0.0) * real("tpot", tpot, 0.0))


def expected_accepted(drafted: int, rate: float) -> float:
    """Mean number of accepted tokens if each is accepted with one chance, given all before it were.

    The sum of rate^i for i from 1 to `drafted`. It is not ``drafted * rate``, as the references have it: a token
    after a rejected one is lost.

    Parameters
    ----------
    drafted : int
        Length of the draft.
    rate : float
        From 0 to 1; :func:`token_rate` gives it.

    Examples
    --------
    >>> from lynxq.latency import expected_accepted
    >>> expected_accepted(2, 0.5)
    0.75
    """
    count, chance = integer("drafted", drafted, 0, 1 << 31, ParamsError), real("rate", rate, 0.0, 1.0)
    if chance == 1:
        return float(count)
    return chance * -math.expm1(count * math.log(chance)) / (1 - chance) if chance else 0.0


def token_rate(mean_accepted: float, full_acceptance: float) -> float:
    """Chance of a token to be accepted, given all before it were, from what is measured.

    Of every request's tokens that were judged on their own merits, `mean_accepted` were accepted and one was
    rejected unless all were accepted.

    Parameters
    ----------
    mean_accepted : float
        Accepted tokens of a request, on average.
    full_acceptance : float
        P(full acceptance), from 0 to 1.

    Examples
    --------
    The references' 90.4 % are accepted over drafted tokens, 19.38 of 21.43. With P(full acceptance) = 64.8 %, the
    chance of a single token is

    >>> from lynxq.latency import expected_accepted, token_rate
    >>> rate = token_rate(19.38, 0.648)
    >>> round(rate, 3)
    0.982

    and at that chance a window of 64 gives, not 64 · 0.904 ≈ 58 accepted tokens, but

    >>> round(expected_accepted(64, rate))
    38
    """
    mean, full = real("mean_accepted", mean_accepted, 0.0), real("full_acceptance", full_acceptance, 0.0, 1.0)
    judged = mean + 1 - full
    return mean / judged if judged else 1.0
