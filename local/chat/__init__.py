"""A terminal client for the API: it streams, shows tools, stops turns and takes running ones up again."""
