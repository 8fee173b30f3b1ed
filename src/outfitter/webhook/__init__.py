"""The admission webhook of a cluster: the API server asks it about every write of our kinds, and it answers with the rules of
`api.admission`, which the embedded API server applies itself. Holds no rule of its own, and writes nothing but its certificate.

`rules` lists what is sent to it and what happens while it is away, `review` reads and answers an AdmissionReview, `reads` finds
the other objects that a rule looks up, `certificate` and `certificate_rotation` keep its TLS certificate. Run by
`roles.webhook`; the rules are read by `install`:

    webhook = AdmissionWebhook(store, admission=AdmissionRules(), clock=clock, namespace="outfitter-system")
    status, body = await webhook.answer("/validate", posted)
"""
