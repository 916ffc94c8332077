"""Parameters chosen for a model: :func:`lynxq.calibrate` and its result.

The measure of a good choice is text that was not calibrated on; what came out is on the page on calibration.
"""

from lynxq.calibration.result import Calibration, Entry
from lynxq.calibration.selection import calibrate

__all__ = ["Calibration", "Entry", "calibrate"]
