"""Whether figures and tables may be drawn: while a thread imports pandas, Plotly would find it half imported."""

from threading import Event

READY = Event()
READY.set()  # only the server imports modules in a thread
