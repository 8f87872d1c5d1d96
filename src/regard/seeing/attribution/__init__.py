"""Attribution: what mattered to an output, how far that can be trusted, and interventions."""
