"""Sphinx's configuration: ``make docs``. No extension asks the network, so the site builds without one."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

import generate  # noqa: E402  (found on the path set above)

project = "diag"
author = "the diag authors"
html_title = "diag"
highlight_language = "text"
smartquotes = False  # they turn --option into a dash
html_theme = "furo"
html_copy_source = False
html_show_copyright = False

extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
exclude_patterns = ["_build"]
nitpicky = True

generate.write(DOCS / "reference")
