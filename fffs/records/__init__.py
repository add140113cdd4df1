"""Where records lie, and reading them."""
