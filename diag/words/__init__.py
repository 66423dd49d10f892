"""How results are worded: ranks, sizes, durations, costs, tables of ranks, and the only output to a terminal."""
