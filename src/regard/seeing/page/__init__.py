"""HTML pages, with the templates and scripts that they are made of."""
