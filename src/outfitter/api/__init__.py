"""Kinds, admission, validation and conversions: pure values and functions over wire objects. No I/O, no clock, no randomness.
Every other package except `cel` builds on it. To add a kind, start at `kinds.py`. Example:
`AdmissionRules().admit(WriteRequest("create", kinds.POD, obj, None))` fills in defaults, or raises Invalid with every cause."""
