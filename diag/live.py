"""The curves and the progress of a run, also while it trains: from its records, without an analysis."""

from diag.rundir.curves import Curves as Curves
from diag.rundir.curves import Progress as Progress
from diag.rundir.curves import curves_of as curves_of
from diag.rundir.curves import progress_of as progress_of
