"""Pictures of error against what it costs: the rows of :func:`lynxq.evaluate.evaluate` as a matplotlib figure.

Needs ``pip install 'lynxq[plot]'``. Nothing here touches pyplot or matplotlib's settings, so figures can be made in
any thread and without a display; colours are set one by one, so that a dark style of the caller does not change them.
"""

from lynxq.plots.errors import error_against_bits
from lynxq.plots.files import image_format, save
from lynxq.plots.marks import Mark
from lynxq.plots.panels import draw

__all__ = ["Mark", "draw", "error_against_bits", "image_format", "save"]
