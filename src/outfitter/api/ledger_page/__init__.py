"""The page of a host or of a pool without one (LedgerPage): the entries of its lists, the values in them, and the page as a
whole. `page` is what other packages read and change pages with."""
