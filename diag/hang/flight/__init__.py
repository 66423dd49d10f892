"""Flight Recorder dumps: what each rank called last, and which ranks wait for which."""

from diag.hang.flight.board import Dumps
from diag.hang.flight.clues import FlightFindings, clues_of
from diag.hang.flight.read import read_dumps

__all__ = ["Dumps", "FlightFindings", "clues_of", "read_dumps"]
