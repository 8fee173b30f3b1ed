"""The functions that an expression can call, one module per type: strings, lists, quantities, versions, times, addresses.
`functions` puts them together by name and number of arguments. All are pure; called by the compiler alone."""
