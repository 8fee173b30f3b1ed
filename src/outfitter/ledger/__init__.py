"""Who holds what: the only writer of pages. Books, prepares, releases and brings pages and claims together again; never
chooses (that is `scheduling`) and never touches a host (that is `node`). Called by controllers and the node.
Begin at `book.py`; the order of the writes and every crash between two of them is in docs/decisions/0001."""
