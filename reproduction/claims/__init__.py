"""What experiments claim, where that is more than fits beside them."""
