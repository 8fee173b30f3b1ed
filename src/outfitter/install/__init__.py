"""What `outfit install` puts into a Kubernetes cluster, as wire objects, and how it gets there: `manifests.objects(options)`
lists every object in the order of installation, `rbac.py` the rights of each role, `apply.py`, `remove.py` and `diff.py`
bring a cluster to that list. `crds.py` generates the definitions. Starts no role and reads no host. Called by
`cli/install` and by the script that writes `deploy/`.

    objects = manifests.objects(InstallOptions(image="registry.example.com/outfitter:0.1.0"))
    await apply.apply(kube, objects, ...)
"""
