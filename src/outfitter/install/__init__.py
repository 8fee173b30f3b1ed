"""What `outfit install` writes to a cluster, as objects: built from the same tables as the embedded mode, so that both behave
the same.

    crds.definitions()     # the CustomResourceDefinitions, to be applied first
"""
