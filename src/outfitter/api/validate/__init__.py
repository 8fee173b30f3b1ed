"""What makes an object right, by kind. Each file takes an object and yields every cause at once: field path, what is wrong,
what would be right. Called by `api.admit` for the embedded homes and by the webhook in a cluster."""
