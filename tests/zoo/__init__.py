"""Small models of many kinds, and a table of which strategy trains which of them."""
