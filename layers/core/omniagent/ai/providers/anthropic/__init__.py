"""Claude, through Anthropic's Messages API."""
