"""Tables behind a verdict: collectives, kernels, modules, memory, loading, efficiency, and all ranks over time."""
