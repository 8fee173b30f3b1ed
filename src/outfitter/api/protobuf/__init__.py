"""Kubernetes' protobuf: numbers and types of the fields of the built-in kinds, and how JSON objects are encoded with them. The
API server decodes request bodies with the same tables (`apiserver.protobuf`), the pods API of a node encodes pods.

    encoder.encode("v1", "Pod", {"metadata": {"name": "p", "uid": "u"}}) == b"\\x0a\\x06\\x0a\\x01p\\x2a\\x01u"
"""
