"""Tables of the documents, rendered from the results."""
