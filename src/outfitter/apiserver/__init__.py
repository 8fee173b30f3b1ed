"""The embedded API server, as kubectl and every Kubernetes client know it: thin, over one store that keeps its own objects.

A request goes through `app` (who, may they, which answer) to `verbs` or `watch`; `negotiate` reads bodies and chooses how
to answer, `status` turns every error into a Kubernetes Status, `tables` holds the columns of kubectl get, `discovery` and
`openapi` say what is served. It decides nothing about the nouns: that is the store's rules. To begin, read `app`."""
