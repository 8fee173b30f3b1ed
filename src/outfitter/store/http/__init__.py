"""An HTTP/1.1 client for one server, as the Kubernetes backend needs it: few headers, answers read whole or as a stream, no
redirects, no cookies, no retries. Called by `store.rest_client` alone; `object_decoder` decodes what it reads.

    pool = HttpPool("https://127.0.0.1:6443")
    answer = await pool.send(b"GET /version HTTP/1.1\\r\\nHost: 127.0.0.1:6443\\r\\n\\r\\n", b"", tls, stream=False, silence=75)
    answer.status, answer.headers["Content-Type"], answer.body"""
