"""A training run as a graph of work and collectives that can be replayed, changed, and replayed again.

``predict`` builds the graph from an account of the run and replays it with and without a change, ``mutations`` change
it, ``knobs`` propose changes and ``advice`` chooses among them. Pure: no files, no printing, no torch.
"""
