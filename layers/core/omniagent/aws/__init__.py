"""AWS services: the signed JSON API client, the turn table, queues, secrets and metrics."""
