"""`outfit install`: `command` parses its arguments, `actions` does what they ask."""
