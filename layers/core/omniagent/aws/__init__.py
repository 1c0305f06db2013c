"""OmniAgent on AWS Lambda: the streaming runtime, the ASGI bridge, the caller's identity and secrets."""
