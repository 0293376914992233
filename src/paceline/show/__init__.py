"""Tables, SVG and HTML for the output of other packages."""
