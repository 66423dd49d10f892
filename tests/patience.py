"""How long a test waits for what must come. It bounds a test that hangs, and is no claim about speed: on a machine with
one busy core, importing PyTorch alone took a minute."""

PATIENCE_S = 500  # faulthandler_timeout, in pyproject.toml, ends the whole run
