"""How long a text a model was made for, and the refusal of a longer one."""

from __future__ import annotations

from typing import Any

from lynxq.errors import ShapeError

#: Kinds of rotary embedding that reach `factor` times as far as the configuration's number.
_STRETCHED = ("yarn", "dynamic")


def positions_of(config: Any) -> int | None:
    """Positions that a model was made for; None where its configuration has no such number.

    Parameters
    ----------
    config : transformers.PretrainedConfig
        Of the text model.
    """
    number = getattr(config, "max_position_embeddings", None)
    if not isinstance(number, int) or number < 1:
        return None
    rotary = getattr(config, "rope_parameters", None) or {}
    if rotary.get("rope_type") in _STRETCHED:
        original = rotary.get("original_max_position_embeddings") or number
        return max(number, int(original * (rotary.get("factor") or 1)))
    return number


def check_length(positions: int | None, tokens: int, following: int = 0, *, model: str = "the model") -> None:
    """Refuse a text that is longer than a model was made for.

    Rotary embeddings go on beyond it without a word, and what the model says there means nothing.

    Parameters
    ----------
    positions : int or None
        Of the model, as :func:`positions_of` gives it; None is without limit.
    tokens : int
        Of the text.
    following : int
        Tokens that will come behind it.
    model : str
        Its name, for the message.

    Raises
    ------
    ShapeError
        If the model has too few positions.

    Examples
    --------
    >>> from lynxq.lab.positions import check_length
    >>> check_length(8192, 8128, 64)
    >>> check_length(8192, 9000, 64)
    Traceback (most recent call last):
    lynxq.errors.ShapeError: the model has 8192 positions, got 9000 tokens and 64 after them, which is 9064
    """
    if positions is not None and tokens + following > positions:
        behind = f" and {following} after them, which is {tokens + following}" if following else ""
        raise ShapeError(f"{model} has {positions} positions, got {tokens} tokens{behind}")
