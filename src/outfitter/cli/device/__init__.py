"""`outfit devices` and `outfit device`. `view` joins slices, pages and inventories into one ListedDevice per device, `text`
words its state, `listing` and `tree` print devices, `out_of_service` reserves and quarantines single devices."""
