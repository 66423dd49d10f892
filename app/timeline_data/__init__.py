"""Data that the timeline's canvas requests while the user zooms: tiles, events, searches. The page is not redrawn.

The page shares an analysed run under a random name (`source.share`); the canvas requests its parts at
``timeline-data/WHAT``, on the same server and behind the same guard as everything else; `answers` has the list.
"""
