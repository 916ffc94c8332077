"""Parameters chosen for a model: :func:`lynxq.calibrate` and its result.

The measure of a good choice is text that was not calibrated on; what came out is on the page on calibration.
"""

from lynxq.calibration.api import calibrate
from lynxq.calibration.result import Calibration, Entry

__all__ = ["Calibration", "Entry", "calibrate"]
