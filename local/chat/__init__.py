"""A terminal client for the API: it streams, shows tools, stops turns and resumes running ones."""
