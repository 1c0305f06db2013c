"""HTTP without AWS: who calls, request bodies, problems, resources, and the stream as a response."""
