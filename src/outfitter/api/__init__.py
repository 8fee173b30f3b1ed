"""The nouns: kinds, their rules and their conversions. Pure values and functions: no I/O, no clock, no randomness.
Called by everybody. To add a kind, begin at `kinds.py`."""
