"""Changes of a running VM, decided: what is copied to its VMI, what needs a migration, and what waits for a restart. Pure;
called by the VM controller, `controllers/nic_hotplug` and `outfit why`.

Each kind of device contributes (`contribution.Contributor`) and knows no other; `evaluator` puts the contributions together,
and what no contributor owns waits for a restart:

    evaluation = evaluate(RunningVm(template_spec, vmi, pod), CONTRIBUTORS)
    evaluation.live      # {"networks": [...], "domain.devices.interfaces": [...]}: to write to the VMI's spec
    evaluation.restart   # ("domain.cpu.cores",): fields that wait
"""
