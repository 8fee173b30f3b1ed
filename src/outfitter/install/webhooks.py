"""The webhook configurations and the APIServices of `outfit webhook`. The CA is not here: the webhook writes it into these
objects, and an installation that is applied again leaves it."""

from __future__ import annotations

from outfitter.api.kinds import Object
from outfitter.install.names import InstallOptions


def objects(options: InstallOptions) -> list[Object]:
    return []
