"""HTTP without AWS: authentication, request bodies, problems, resources, and the stream as a response."""
