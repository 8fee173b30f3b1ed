"""One controller for each noun: reads shared informers, decides in pure functions, writes through the store, touches no host.
Every controller can be killed and started elsewhere: all its state is in the store. To add one, start at `manager.py`; `vm.py`
with `vm_run_strategy.py` is a model: the controller reads and writes, `decide` holds the rules."""
