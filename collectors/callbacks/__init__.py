"""Recordings that a framework begins and ends. Each module needs its framework; nothing else imports them."""
