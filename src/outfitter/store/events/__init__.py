"""Kubernetes Events: similar ones are counted in one object, as client-go does."""
