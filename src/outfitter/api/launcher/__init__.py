"""What the node agent and the launcher of a VM tell each other: environment, protocol of the socket, outcome. No I/O."""
