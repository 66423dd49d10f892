"""What the dashboard's pages look at behind the verdict, for them to import: `diag.api` loads it only when asked."""

from diag.attribution.loading_table import LoadingTable as LoadingTable
from diag.attribution.memory_table import MemoryTable as MemoryTable
from diag.compare import Comparison as Comparison
from diag.explanation import RankDifference as RankDifference
from diag.kernel_names import short_name as short_name
from diag.prospect import Change as Change
from diag.prospect import CostCurve as CostCurve
from diag.prospect import Prospect as Prospect
from diag.rank_table import IDLE_COLUMNS as IDLE_COLUMNS
from diag.rank_table import IDLE_TITLE as IDLE_TITLE
from diag.rank_table import STALLS_TITLE as STALLS_TITLE
from diag.rank_table import IdleTable as IdleTable
from diag.rank_table import StallTable as StallTable
from diag.rank_table import idle_table as idle_table
from diag.rank_table import stall_table as stall_table
from diag.zoom.detail import Bars as Bars
from diag.zoom.detail import Pixels as Pixels
from diag.zoom.detail import by_name as by_name
from diag.zoom.detail import pixel_edges as pixel_edges
from diag.zoom.detail import read_bars as read_bars
from diag.zoom.detail import read_lanes as read_lanes
from diag.zoom.lane import Category as Category
from diag.zoom.lane import Lane as Lane
from diag.zoom.ranks import AllRanks as AllRanks
from diag.zoom.ranks import StepSpan as StepSpan
