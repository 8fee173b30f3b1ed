"""The functions of CEL expressions, one module per type: strings, lists, quantities, versions, times, addresses. `functions`
collects them by name and number of arguments. All are pure; called by the compiler, and by the checker for literals.

>>> from outfitter.cel.library import quantity
>>> quantity.parse("1.5Gi") < quantity.parse("2Gi")
True
"""
