"""How results are worded: ranks, sizes, durations, costs, tables of ranks, and the one way out to a terminal."""
