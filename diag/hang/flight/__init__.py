"""Flight Recorder dumps: what each rank called last, and who waits for whom."""

from diag.hang.flight.clues import FlightFindings, clues_of
from diag.hang.flight.read import read_dumps
from diag.hang.flight.record import Dumps

__all__ = ["Dumps", "FlightFindings", "clues_of", "read_dumps"]
