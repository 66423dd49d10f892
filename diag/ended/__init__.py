"""How the ranks of a run ended or stand still, by its records: heartbeats, exit codes, exceptions, collectives."""
