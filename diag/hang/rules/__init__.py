"""What follows from the lines: one file a rule, one pure function each, ``(Case) -> list[Clue]``."""
