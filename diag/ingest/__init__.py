"""Reads what a run left behind into tables. Says what is missing; never guesses it."""
