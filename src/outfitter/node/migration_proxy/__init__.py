"""How the memory and the calls of a live migration go from a launcher pod on one node to one on another: launchers have no
network, so the node agents of both nodes pass bytes on, over TLS with certificates of both.

    libvirtd, QEMU      agent of the source                agent of the target      launcher, QEMU
    in the source's --> unix sockets in the  --- TLS --->  one TCP port         --> unix sockets in the
    pod                 folder of its pod                                            folder of the target's pod

Certificates live as long as the process that has the key. Each agent writes its own into `status.migrationState` of the VMI,
which nothing but the agents of its two nodes and the controllers can write, and accepts the other's from there: there is no
Secret, no shared key, and an agent can pretend nothing about VMs of other nodes.

>>> from outfitter.node.migration_proxy.proxy_protocol import hello, parse_hello
>>> parse_hello(hello("memory"))
'memory'
"""
