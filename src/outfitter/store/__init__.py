"""Where nouns live: one small Protocol (`base.Store`) with three homes, `memory`, `sqlite` and `kube`; informers, a work
queue, leases and event recording on top. Knows no noun by name: kinds come in as values, rules as an argument.
Called by everything to its right. To add a home, begin at `base.py` and run tests/store against it."""
