"""Code shared by all clusters: jobs, argument checks, results, stop requests."""
