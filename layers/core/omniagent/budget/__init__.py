"""Budgets: counters of what each user spends, checked before each model call and added to after it."""
