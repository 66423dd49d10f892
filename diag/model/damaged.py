"""What msgspec raises for what is no JSON of the expected kind, as text that is not UTF-8 or 100,000 open brackets."""

import msgspec

DAMAGED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
