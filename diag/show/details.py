"""What the dashboard's pages look at behind the verdict, for them to import: `diag.api` loads it only when asked."""

from diag.diagnoses.compare import Comparison as Comparison
from diag.diagnoses.explanation import RankDifference as RankDifference
from diag.model.prospect import CostCurve as CostCurve
from diag.model.prospect import KnobChange as KnobChange
from diag.model.prospect import Prospect as Prospect
from diag.tables.loading import LoadingTable as LoadingTable
from diag.tables.memory import MemoryTable as MemoryTable
from diag.tables.zoom import AllRanks as AllRanks
from diag.tables.zoom import Bars as Bars
from diag.tables.zoom import Category as Category
from diag.tables.zoom import Lane as Lane
from diag.tables.zoom import Pixels as Pixels
from diag.tables.zoom import StepSpan as StepSpan
from diag.tables.zoom import by_name as by_name
from diag.tables.zoom import pixel_edges as pixel_edges
from diag.tables.zoom import read_bars as read_bars
from diag.tables.zoom import read_lanes as read_lanes
from diag.words.formatting import short_name as short_name
from diag.words.rank_table import IDLE_COLUMNS as IDLE_COLUMNS
from diag.words.rank_table import IDLE_TITLE as IDLE_TITLE
from diag.words.rank_table import STALLS_TITLE as STALLS_TITLE
from diag.words.rank_table import IdleTable as IdleTable
from diag.words.rank_table import StallTable as StallTable
from diag.words.rank_table import idle_table as idle_table
from diag.words.rank_table import stall_table as stall_table
