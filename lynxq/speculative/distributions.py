"""`Distributions`: what tokens are drawn from, one row for each position."""

from __future__ import annotations

from typing import Any

import numpy as np

from lynxq.arguments import integer, shown
from lynxq.arrays import Array
from lynxq.errors import DistributionError, DTypeError, ParamsError, ShapeError
from lynxq.speculative import rows
from lynxq.speculative.rows import Floats, Home, Integers, Matrix

#: How far the sum of given probabilities may be from 1; rows are normalised in float64.
SUM_TOLERANCE = 1e-3


class Distributions:
    """Probability distributions over a vocabulary, one for each of N rows; immutable.

    Make them with :meth:`from_logits`, :meth:`from_probabilities` or :meth:`certain`. What is given is kept, not
    copied, and looked at in float64: it must not change while the object is in use.

    Attributes
    ----------
    rows : int
        N.
    vocabulary : int
        V, the number of tokens.

    Examples
    --------
    >>> import numpy as np
    >>> from lynxq.speculative import Distributions
    >>> logits = np.log(np.array([[1.0, 3.0], [2.0, 2.0]], np.float32))
    >>> Distributions.from_logits(logits).probabilities().round(3).tolist()
    [[0.25, 0.75], [0.5, 0.5]]
    >>> Distributions.from_logits(logits, temperature=0.0).probabilities().tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    __slots__ = ("_heat", "_home", "_mass", "_peak", "_points", "_values", "rows", "vocabulary")

    def __init__(self, values: Matrix, home: Home, vocabulary: int, points: Integers) -> None:
        self._values, self._home, self._points = values, home, points
        self._heat: Floats | None = None
        self._peak, self._mass = np.zeros(len(points)), np.ones(len(points))
        self.rows, self.vocabulary = len(points), vocabulary

    @classmethod
    def from_logits(cls, logits: Array, *, temperature: object = 1.0) -> Distributions:
        """softmax(logits / temperature), in float64.

        Parameters
        ----------
        logits : array of floats, shape (N, V)
            -inf stands for a token that cannot come: mask for top-k or top-p beforehand.
        temperature : float or array of float, shape (N,)
            0 is greedy decoding: all mass on the largest logit, the first one where several are equal.

        Raises
        ------
        DistributionError
            If a row holds NaN or +inf, or nothing but -inf.
        DTypeError, ShapeError, ParamsError
            If an argument is of another type, shape or range.
        """
        matrix, home = rows.floats(logits, "logits")
        count, width = matrix.shape
        heat = _temperatures(temperature, count)
        made = cls(matrix, home, width, np.full(count, -1, np.int64))
        made._heat = np.where(heat == 0, 1.0, heat)
        for part in rows.blocks(count, width):
            peak = rows.host(rows.double(rows.library(matrix).amax(matrix[part], -1)))
            if not np.isfinite(peak).all():
                row = part.start + int(np.argmax(~np.isfinite(peak)))
                raise DistributionError(
                    f"logits must be finite or -inf, and one of a row finite, "
                    f"but row {row} has maximum {peak[row - part.start]}"
                )
            made._peak[part] = peak
            made._mass[part] = rows.host(rows.exponentials(matrix[part], peak, made._heat[part]).sum(-1))
        greedy = np.flatnonzero(heat == 0)
        for part in rows.blocks(len(greedy), width):
            made._points[greedy[part]] = rows.first_largest(matrix[rows.like(greedy[part], matrix)])
        return made

    @classmethod
    def from_probabilities(cls, probabilities: Array) -> Distributions:
        """Probabilities as they are, divided by their sum in float64.

        Parameters
        ----------
        probabilities : array of floats, shape (N, V)
            Not negative; the sum of a row may be off 1 by `SUM_TOLERANCE`.

        Raises
        ------
        DistributionError
            If a value is negative or NaN, or a row does not sum to 1.
        DTypeError, ShapeError
            If it is no matrix of floats.
        """
        matrix, home = rows.floats(probabilities, "probabilities")
        count, width = matrix.shape
        made = cls(matrix, home, width, np.full(count, -1, np.int64))
        for part in rows.blocks(count, width):
            block = rows.double(matrix[part])
            least = rows.host(rows.library(block).amin(block, -1))
            mass = rows.host(block.sum(-1))
            wrong = ~((least >= 0) & (np.abs(mass - 1) <= SUM_TOLERANCE))
            if wrong.any():
                row = int(np.argmax(wrong))
                raise DistributionError(
                    f"probabilities must not be negative and must sum to 1, "
                    f"but row {part.start + row} has minimum {least[row]} and sum {mass[row]}"
                )
            made._mass[part] = mass
        return made

    @classmethod
    def certain(cls, tokens: Array, vocabulary: int) -> Distributions:
        """All mass on one token of every row, such as a drafter without randomness has it; needs no matrix.

        Parameters
        ----------
        tokens : array of integers, shape (N,)
        vocabulary : int
            V, above every token.
        """
        width = integer("vocabulary", vocabulary, 1, 1 << 31)
        points, home = rows.token_ids(tokens, None, width)
        return cls(None, home, width, points)

    @property
    def home(self) -> Home:
        """Library and device of what was given."""
        return self._home

    def probabilities(self) -> Array:
        """All rows, float64, shape (N, V), in the library and on the device of what was given."""
        matrix = self.matrix(np.arange(self.rows))
        return self._home.put(matrix) if isinstance(matrix, np.ndarray) else matrix

    def matrix(self, index: Integers) -> Matrix:
        """Some rows in float64, shape (len(index), V)."""
        points = self._points[index]
        sure = np.flatnonzero(points >= 0)
        if self._values is None:
            result: Matrix = np.zeros((len(index), self.vocabulary))
            if self._home.library == "torch" and self._home.device.type != "cpu":
                result = self._home.put(result)
        else:
            block = self._values[rows.like(index, self._values)]
            if self._heat is None:
                result = rows.double(block)
            else:
                result = rows.exponentials(block, self._peak[index], self._heat[index])
            result /= rows.like(self._mass[index][:, None], result)
        place = rows.like(sure, result)
        result[place] = 0.0
        result[place, rows.like(points[sure], result)] = 1.0
        return result

    def of_tokens(self, tokens: Integers, index: Integers) -> Floats:
        """Probability of one token in each of some rows, on the host, shape (len(index),)."""
        points = self._points[index]
        chance: Floats = (points == tokens).astype(np.float64)
        rest = np.flatnonzero(points < 0)
        if len(rest):
            row, column = index[rest], tokens[rest]
            picked = self._values[rows.like(row, self._values), rows.like(column, self._values)]
            values = rows.host(rows.double(picked))
            if self._heat is not None:
                values = rows.exponentials(values[:, None], self._peak[row], self._heat[row])[:, 0]
            chance[rest] = values / self._mass[row]
        return chance

    def draw(self, random: object) -> Array:
        """Draw a token of every row.

        Parameters
        ----------
        random : numpy Generator, torch Generator, or array of float64, shape (N,)
            Uniform numbers of [0, 1), or where to take them.

        Returns
        -------
        array of int64, shape (N,)

        Examples
        --------
        >>> import numpy as np
        >>> from lynxq.speculative import Distributions
        >>> rows = Distributions.from_probabilities(np.array([[0.25, 0.75], [0.5, 0.5]]))
        >>> rows.draw(np.array([0.3, 0.2])).tolist()
        [1, 0]
        """
        uniforms = rows.random_numbers(random, self.rows)
        tokens = self._points.copy()
        rest = np.flatnonzero(tokens < 0)
        for part in rows.blocks(len(rest), self.vocabulary):
            tokens[rest[part]] = rows.draw(self.matrix(rest[part]), uniforms[rest[part]])
        return self._home.put(tokens)

    @classmethod
    def concatenate(cls, parts: list[Distributions], order: Integers) -> Distributions:
        """The rows of several objects of one kind, one after the other, and then in another order."""
        first = parts[0]
        for part in parts:
            if (part.home, part.vocabulary, part._values is None, part._heat is None) != (
                first.home,
                first.vocabulary,
                first._values is None,
                first._heat is None,
            ):
                raise DistributionError("distributions of one draft must have one vocabulary, library, device and kind")
        values: Matrix = None
        if first._values is not None:
            lib = rows.library(first._values)
            values = lib.concatenate([part._values for part in parts])[rows.like(order, first._values)]
        made = cls(values, first.home, first.vocabulary, np.concatenate([part._points for part in parts])[order])
        made._peak = np.concatenate([part._peak for part in parts])[order]
        made._mass = np.concatenate([part._mass for part in parts])[order]
        if first._heat is not None:
            made._heat = np.concatenate([part._heat for part in parts if part._heat is not None])[order]
        return made

    def __repr__(self) -> str:
        return f"Distributions(rows={self.rows}, vocabulary={self.vocabulary}, {self._home.library})"


def _temperatures(temperature: object, count: int) -> Floats:
    given: Any = temperature
    if not isinstance(given, int | float) or isinstance(given, bool):
        given = rows.host(rows.view(temperature, "temperature, unless it is a number,")[0])
        if given.dtype.kind not in "fiu":
            raise DTypeError(f"temperature must be numbers, got {given.dtype}")
        if given.shape not in {(), (count,)}:
            raise ShapeError(f"temperature must be a number or have shape ({count},), got {given.shape}")
    heat = np.broadcast_to(np.asarray(given, np.float64), (count,))
    if not (np.isfinite(heat) & (heat >= 0)).all():
        raise ParamsError(f"temperature must be finite and not negative, got {shown(temperature)}")
    return heat
