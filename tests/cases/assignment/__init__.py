"""Cases of device assignment: the world around the product's agents (`world`), device plugins (`plugins`), DRA drivers
(`drivers`) and monitors (`monitors`) that are played, steps and expectations. Nothing here knows a rule of the product: it
speaks to it through the API server and the sockets of its kubelet folders."""
