"""Streamlit with the pages' modules loaded before it listens, so that the first visitor does not wait for them (0.4 s).

``python -m diag.app.server run main.py ...``: what follows is Streamlit's own command line.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module

from streamlit.web import cli

from diag.app import views


def main() -> None:
    for page in pkgutil.iter_modules(views.__path__, prefix=f"{views.__name__}."):
        import_module(page.name)
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    main()
