"""The composition root: one `Application` that functions, servers and the HTTP apps use."""
