"""Validation by kind. Each check takes an object and yields every cause at once: field path, what is wrong, what would be
right. Causes that KubeVirt also reports keep KubeVirt's text. Called by `api.admission` for the embedded API server and by the
webhook in a
cluster."""
