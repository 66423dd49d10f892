"""A training run as a graph of work and collectives that can be replayed, changed, and replayed again.

``build`` reads the graph off an account of the run, ``engine`` replays it, ``mutations`` change it, and ``predict``
says what a change would gain and how sure that is. Pure: no files, no printing, no torch.
"""
