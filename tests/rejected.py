"""Rejections in few words, for tests that compare them as values."""

from __future__ import annotations

from typing import Any

from outfitter.api.device import DeviceId
from outfitter.api.rejection import Rejection, RejectionCode

Code = RejectionCode


def no(code: RejectionCode, device: DeviceId | None = None, /, **detail: Any) -> Rejection:
    return Rejection(code, device, detail=detail)
