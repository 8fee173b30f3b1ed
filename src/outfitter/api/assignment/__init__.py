"""Devices of containers that are not claimed: which ids a container was assigned."""
