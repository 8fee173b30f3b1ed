"""`outfit devices` and `outfit device`: every device with its state and holder (`view`, `text`), as a table or tree (`listing`,
`tree`), and the commands that take single devices out of service (`out_of_service`)."""
