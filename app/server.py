"""Streamlit with the pages' modules loaded before it listens, so that the first visitor does not wait for them (0.4 s).

``python -m diag.app.server run main.py ...``: what follows is Streamlit's own command line.
"""

from __future__ import annotations

from importlib import import_module

from streamlit.web import cli

_PAGES = ("collectives", "compare", "hang", "kernels", "live", "loading", "memory", "overview", "runs", "timeline",
          "tuning", "what_if")  # fmt: skip


def main() -> None:
    for page in _PAGES:
        import_module(f"diag.app.views.{page}")
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    main()
