"""`paceline cut`: what is known of a model in stages, and its drawing."""
