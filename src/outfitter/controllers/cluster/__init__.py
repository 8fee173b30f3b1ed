"""Controllers of a cluster alone, which have nothing to do where everything is one process."""
