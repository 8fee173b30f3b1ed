"""The aggregated API `subresources.kubevirt.io` of a cluster: start, stop, pause and the rest of `apiserver.subresources`, for
virtctl and `outfit vm` behind kube-apiserver's aggregation layer. Part of the process `outfit webhook`.

    api = AggregatedApi(store, clock=clock)              # an ASGI application
    api.front_proxy.on_client_ca(server.trust)           # the TLS server verifies client certificates with this authority
    await asyncio.gather(api.run(), server.serve(api))

A user's request comes from kube-apiserver, which has authenticated and authorized it: with kube-apiserver's client certificate
and the user in request headers (`front_proxy`). A SubjectAccessReview authorizes it again (`access_review`), because a request
may come on another way than kube-apiserver's. What it changes is written with the service account of this process."""
