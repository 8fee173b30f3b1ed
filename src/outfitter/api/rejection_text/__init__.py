"""Rejections in words: the one renderer behind conditions, events, `outfit why`, `outfit plan`, JSON and the page. Pure.

    render(rejection)                                # "gpu-7f3c: held by vmi/blue (claim train-0) in lab since 2026-01-31..."
    render(rejection, Wording("lab", claims=False))  # "gpu-7f3c: held by vmi/blue since 2026-01-31T12:04:00Z"

Nothing reads a sentence back. Its golden file is tests/api/golden/rejection_text.txt."""

from outfitter.api.rejection_text import devices, hosts, pods, preparation
from outfitter.api.rejection_text.rendering import (
    EXACT,
    Wording,
    add,
    amount_text,
    error,
    holder_name,
    render,
    render_all,
    request_name,
    sentence,
    to_object,
)

__all__ = ["EXACT", "Wording", "amount_text", "error", "holder_name", "render", "render_all", "request_name", "sentence",
           "to_object"]

for _each in (pods, hosts, devices, preparation):
    add(_each.SENTENCES)
