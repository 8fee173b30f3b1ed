"""One loop for each noun, from what is wanted to what is: reads shared informers, writes through the store, touches no host.
Every loop can be killed and started elsewhere: all it knows is in the store. To add one, begin at `loop.py`."""
