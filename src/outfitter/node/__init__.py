"""The node agent of a host: audits and publishes its devices, prepares what is booked, runs the VMs that are bound to it, and
releases what terminated VMs held. It does not choose hosts or devices: `scheduling` does. In embedded mode one process is the
agent of every simulated host.

Worked example: a launcher pod is bound to `node-0`, and its claim has `gpu-1` booked on the page of that host.

    agent.py              the pod is reconciled under the host's lock
    claim_bookings.py     the page's booking turns from booked to prepared: the exclusive check
    claim_preparation.py  the checkpoint is written, then prepare.py binds the functions (vfio.py) and writes CDI and metadata
    status_reporter.py    the pod is reported as Running
    agent.py              once the VMI's status contains its devices, the domain is built and started
    unprepare.py          when the pod terminates: files removed, functions reset and restored, the booking released

Everything that is written to a host goes through `sysfs_root.py`; `simulation/` has the kernel of simulated hosts."""
