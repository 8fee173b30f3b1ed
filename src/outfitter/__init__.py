"""Outfits virtual machines with hardware and can always say who holds what, since when, and why not.

Read it from the left: `cel` -> `api` -> `store` -> `inventory` -> `ledger` -> `scheduling` -> `controllers` and `node`
-> `apiserver` and `cli`; `launcher` stands beside them and imports `api` alone; `app` wires them."""

__version__ = "0.1.0"
