"""Sessions: who they belong to, what the model is shown of them, how a turn is recorded."""
