"""The page of the small-data benchmark."""
