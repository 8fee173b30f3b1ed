"""Who holds what: the only writer of pages. Books, prepares, moves and releases, takes devices out of service, brings pages and
machines together again, and remembers what ended; never chooses (that is `scheduling`) and never touches a host (that is
`node`). Called by controllers, the node and the faces. Begin at `book.py`; the order of the writes and every crash between two
of them is in docs/decisions/0001 and 0007."""
