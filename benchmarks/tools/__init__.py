"""Tools of a release and of the code base."""
