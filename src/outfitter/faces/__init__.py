"""How outfitter is spoken to: each face speaks one language and holds no rules. Faces do not know one another; whatever
two of them need lives further left."""
