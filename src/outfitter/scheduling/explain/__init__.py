"""Explanations for users: why a VM, pod or claim waits or what it has, host by host and device by device, and what would help.
Called by `outfit why`, `outfit plan` and the scheduler's conditions. Pure: objects in, text and values out."""
