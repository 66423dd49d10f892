"""Whether figures and tables may be drawn: while a thread imports pandas, Plotly would find it half imported.

The first screen of the overview needs neither, and takes the processor before those imports.
"""

from threading import Event

READY = Event()
READY.set()  # only the server imports modules in a thread
WANTED = Event()  # a page has drawn what it can draw without them


def wait_until_ready() -> None:
    WANTED.set()
    READY.wait()
