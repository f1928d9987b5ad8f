"""What a user would take instead of deep_ll."""
