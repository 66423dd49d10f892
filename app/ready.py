"""Whether figures and tables may be drawn: while pandas is imported in a thread, Plotly would find half of it."""

from threading import Event

READY = Event()
READY.set()  # outside of the server nothing is imported beside
